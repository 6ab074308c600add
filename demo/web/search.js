/** The page: loads the model and the index, answers questions. */

import { load } from "./rlx.js";
import { dropZone, engineText } from "./times.js";
import { Tokenizer } from "./tokenizer.js";

const SHOWN = 3; // answers to a question
const $ = (id) => document.getElementById(id);
const element = (kind, facts) => Object.assign(document.createElement(kind), facts);

async function fetched(name) {
  const answer = await fetch(name);
  if (!answer.ok) throw new Error(`${name} cannot be fetched: status ${answer.status}`);
  return answer;
}

/** The vector of a text, of length 1. */
async function embedded({ model, tokenizer }, text) {
  const ids = tokenizer.encode(text);
  const dims = [1, ids.length];
  const whole = (values) => ({ data: BigInt64Array.from(values, BigInt), dims });
  const { sentence_embedding } = await model.run({
    input_ids: whole(ids),
    attention_mask: whole(ids.map(() => 1)),
    token_type_ids: whole(ids.map(() => 0)),
  });
  return sentence_embedding;
}

/** The sentences by how near they are, the nearest first. */
async function ranked(state, text) {
  const vector = await embedded(state, text);
  const { sentences, index } = state;
  const scores = sentences.map((sentence, row) => {
    const own = index.subarray(row * vector.length, (row + 1) * vector.length);
    return { sentence, row, score: own.reduce((sum, x, i) => sum + x * vector[i], 0) };
  });
  return scores.sort((a, b) => b.score - a.score);
}

async function answer(state, text) {
  const start = performance.now();
  const found = await ranked(state, text);
  const took = performance.now() - start;
  const rows = found.slice(0, SHOWN).map(({ sentence, score }) => {
    const row = element("li", {});
    row.append(
      element("span", { className: "score", textContent: score.toFixed(2) }),
      element("span", { textContent: sentence }),
    );
    return row;
  });
  $("answers").replaceChildren(...rows);
  $("took").textContent = `${took.toFixed(1)} ms, ${found.length} sentences`;
}

/** Show what a question finds, or what went wrong. */
async function asked(state, text) {
  if (!text.trim()) return;
  $("took").textContent = "…";
  try {
    await answer(state, text);
  } catch (error) {
    $("answers").replaceChildren();
    $("took").textContent = error.message;
  }
}

async function start() {
  const engine = new URLSearchParams(location.search).get("engine") ?? undefined;
  const onProgress = ({ loaded, total }) => ($("progress").value = loaded / (total || 1));
  const [model, vocabulary, texts, vectors] = await Promise.all([
    load("./", { engine, onProgress }),
    fetched("vocab.txt").then((a) => a.text()),
    fetched("search.json").then((a) => a.json()),
    fetched("vectors.bin").then((a) => a.arrayBuffer()),
  ]);
  const state = { model, tokenizer: new Tokenizer(vocabulary), index: new Float32Array(vectors), ...texts };
  $("engine").textContent = `${engineText(model)}; loaded in ${(model.loadMs / 1e3).toFixed(1)} s`;
  for (const question of texts.questions) {
    const button = element("button", { type: "button", textContent: question });
    button.addEventListener("click", () => {
      $("question").value = question;
      asked(state, question);
    });
    const item = element("li", {});
    item.append(button);
    $("examples").append(item);
  }
  $("form").addEventListener("submit", (event) => {
    event.preventDefault();
    asked(state, $("question").value);
  });
  $("question").disabled = false;
  $("question").focus();
  Object.assign(window, { state, ranked: (text) => ranked(state, text) });
}

dropZone($("drop"), $("files"), $("dropped"));
start().then(
  () => (document.documentElement.dataset.ready = "yes"),
  (error) => {
    $("engine").textContent = error.message;
    document.documentElement.dataset.ready = "failed";
  },
);
