/** WordPiece as BERT was trained with: text to token numbers. */

const MOST_CHARACTERS = 100; // of a word; longer ones are unknown
const IDEOGRAPH =
  /[\u{4E00}-\u{9FFF}\u{3400}-\u{4DBF}\u{20000}-\u{2A6DF}\u{2A700}-\u{2B73F}\u{2B740}-\u{2B81F}\u{2B820}-\u{2CEAF}\u{F900}-\u{FAFF}\u{2F800}-\u{2FA1F}]/gu;
const PUNCTUATION = /[!-/:-@[-`{-~\p{P}]/gu;
const CONTROL = /[\0\uFFFD]|(?![\t\n\r])\p{C}/gu;

export class Tokenizer {
  /** @param {string} vocabulary a token per line */
  constructor(vocabulary) {
    this.numbers = new Map(vocabulary.trimEnd().split(/\r?\n/).map((token, i) => [token, i]));
  }

  /** The numbers of a text's tokens, at most so many, between those that begin and end a sentence. */
  encode(text, most = 256) {
    const inner = this.words(text).flatMap((word) => this.pieces(word));
    return ["[CLS]", ...inner.slice(0, most - 2), "[SEP]"].map((token) => this.numbers.get(token));
  }

  /** Words and punctuation marks, lower case and without accents. */
  words(text) {
    const plain = text
      .replace(CONTROL, "")
      .replace(/\s/gu, " ")
      .replace(IDEOGRAPH, " $& ")
      .normalize("NFD")
      .replace(/\p{Mn}/gu, "");
    const lower = Array.from(plain, (character) => character.toLowerCase()).join("");
    return lower.replace(PUNCTUATION, " $& ").split(" ").filter(Boolean);
  }

  /** The longest tokens of a word, from its start on; one that is unknown makes all of it so. */
  pieces(word) {
    const characters = Array.from(word);
    if (characters.length > MOST_CHARACTERS) return ["[UNK]"];
    const found = [];
    for (let start = 0; start < characters.length; ) {
      let end = characters.length;
      const piece = () => (start ? "##" : "") + characters.slice(start, end).join("");
      while (end > start && !this.numbers.has(piece())) end--;
      if (end === start) return ["[UNK]"];
      found.push(piece());
      start = end;
    }
    return found;
  }
}
