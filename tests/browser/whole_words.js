// Words below an element, arguments[0] its selector, that are broken inside.
const broken = [], walk = document.createTreeWalker(document.querySelector(arguments[0]), 4);
for (let text = walk.nextNode(); text; text = walk.nextNode()) {
  if (text.parentNode.closest("pre")) continue;
  for (const { 0: word, index } of text.data.matchAll(/[A-Za-z]+/g)) {
    const range = document.createRange();
    range.setStart(text, index);
    range.setEnd(text, index + word.length);
    const tops = [...range.getClientRects()].map((r) => r.top);
    if (tops.length && Math.max(...tops) - Math.min(...tops) > 4) broken.push(word);
  }
}
return broken;
