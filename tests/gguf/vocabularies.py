"""Small vocabularies for language models: pieces with scores, byte pairs, pieces of words."""

from __future__ import annotations

from gguf import GGUFWriter
from rlx.lm.tokenizer import _BYTES  # pyright: ignore[reportPrivateUsage]

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, BYTE = 1, 2, 3, 4, 6
TEMPLATE = (
    "{% for m in messages %}<|{{ m['role'] }}|>{{ m['content'] }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
SPECIAL = ["<|system|>", "<|user|>", "<|assistant|>", "<|end|>"]


def pieces() -> tuple[list[str], list[float], list[int]]:
    """SentencePiece: words by score, single letters, every byte."""
    words = {"he": -1.0, "ll": -2.0, "hell": -3.0, "▁hell": -3.2, "hello": -3.5, "▁hello": -0.5}
    letters = dict.fromkeys("▁abcdefghijklmnopqrstuvwxyz", -10.0)
    plain = {**letters, **words}
    texts = ["<unk>", "<s>", *SPECIAL, "  ", *(f"<0x{b:02X}>" for b in range(256)), *plain]
    kinds = [UNKNOWN, CONTROL, *[CONTROL] * 4, USER_DEFINED, *[BYTE] * 256, *[NORMAL] * len(plain)]
    return texts, [*[0.0] * 263, *plain.values()], kinds


def byte_pairs() -> tuple[list[str], list[str], list[int]]:
    """Byte-level BPE: all bytes, and merges that make " the"."""
    merges = ["t h", "th e", "Ġ the"]
    texts = [*SPECIAL, *_BYTES, *(m.replace(" ", "") for m in merges)]
    return texts, merges, [*[CONTROL] * 4, *[NORMAL] * (len(texts) - 4)]


def add_pieces(writer: GGUFWriter) -> None:
    texts, scores, kinds = pieces()
    writer.add_tokenizer_model("llama")
    writer.add_token_list(texts)
    writer.add_token_scores(scores)
    writer.add_token_types(kinds)
    writer.add_bos_token_id(1)
    writer.add_unk_token_id(0)
    writer.add_add_bos_token(True)
    writer.add_chat_template(TEMPLATE)


def add_byte_pairs(writer: GGUFWriter) -> None:
    texts, merges, kinds = byte_pairs()
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(texts)
    writer.add_token_merges(merges)
    writer.add_token_types(kinds)
    writer.add_eos_token_id(3)
    writer.add_chat_template(TEMPLATE)


def word_pieces() -> tuple[list[str], list[int]]:
    """WordPiece: special tokens, letters and some longer pieces, at the beginning of a word and
    inside."""
    pieces = ["hell", "hello", "he", "the", "ing", "un", "able", *"abcdefghijklmnopqrstuvwxyz"]
    alone = [*"0123456789.,!?$+-()[]", "中", "ß", "é", "ç"]
    names = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
    texts = [*names, *(f"▁{t}" for t in (*pieces, *alone)), *pieces, *"0123456789", "ß"]
    return texts, [*[CONTROL] * 4, *[NORMAL] * (len(texts) - 4)]


def add_word_pieces(writer: GGUFWriter) -> None:
    texts, kinds = word_pieces()
    writer.add_tokenizer_model("bert")
    writer.add_token_list(texts)
    writer.add_token_types(kinds)
    writer.add_pad_token_id(0)
    writer.add_unk_token_id(1)
    writer.add_bos_token_id(2)
    writer.add_sep_token_id(3)
