/** The files of a folder; weights in chunks that are checked by SHA-256 and cached. */

import { roundUp } from "./arrays.js";
import { FolderError } from "./sizes.js";

const CACHE = "rlx-weights";

/** A file of a folder, which is an address, or files by name. A browser asks whether its own copy is
 * still the file, as a folder may have been exported again. @param {any} folder @param {string} name
 * @param {RequestCache} cache */
export async function file(folder, name, cache = "no-cache") {
  if (typeof folder !== "string" && !(folder instanceof URL)) {
    const held = folder instanceof Map ? folder.get(name) : folder[name];
    if (!held) throw new FolderError(`${name} is not among the files.`);
    return new Response(held);
  }
  const address = new URL(name, new URL(folder, globalThis.location?.href));
  const answer = await fetch(address, { cache }).catch((cause) => {
    throw new FolderError(`${address} cannot be fetched: ${cause.message}`, { cause });
  });
  if (!answer.ok) throw new FolderError(`${address} cannot be fetched: status ${answer.status}.`);
  return answer;
}

/** A file whose hash the manifest states. */
export async function verified(folder, { file: name, sha256: hash }) {
  const raw = await (await file(folder, name)).arrayBuffer();
  if ((await sha256(raw)) !== hash)
    throw new FolderError(`${name} is not what model.json names: it has another SHA-256. Copy it again.`);
  return raw;
}

/** Bytes of entries [..., offset in the file, bytes] as they come: `put` is given an entry, how many
 * bytes of it came before, and the next ones, in whole words. */
export async function upload({ manifest: { weights }, folder, options }, entries, put) {
  const tell = (loaded) => options.onProgress?.({ loaded, total: weights.bytes });
  tell(0);
  let start = 0;
  for await (const chunk of chunksOf(weights, folder)) {
    const end = start + chunk.length;
    for (const entry of entries) {
      const [offset, bytes] = entry.slice(-2);
      const [from, to] = [Math.max(start, offset), Math.min(end, offset + roundUp(bytes, 4))];
      if (from < to) put(entry, from - offset, chunk.subarray(from - start, to - start));
    }
    start = end;
    tell(start);
  }
}

async function sha256(bytes) {
  const found = new Uint8Array(await crypto.subtle.digest("SHA-256", bytes));
  return Array.from(found, (b) => b.toString(16).padStart(2, "0")).join("");
}

/** The chunks in order, each with the hash that is stated: out of the browser's cache from the first
 * on, as far as it has them; the others are streamed, and cached here alone. */
async function* chunksOf({ file: name, bytes, chunkBytes, chunks }, folder) {
  const { origin } = globalThis.location ?? {};
  const store = origin && (await globalThis.caches?.open(CACHE).catch(() => null));
  const key = (i) => `${origin}/${CACHE}/${chunks[i]}`;
  const length = (i) => Math.min(chunkBytes, bytes - i * chunkBytes);
  let cached = 0;
  for (; store && cached < chunks.length; cached++) {
    const held = await store.match(key(cached));
    const raw = held && new Uint8Array(await held.arrayBuffer());
    if (!raw || (await sha256(raw)) !== chunks[cached]) break;
    yield raw;
  }
  if (cached === chunks.length) return;
  let number = 0;
  for await (const chunk of pieces((await file(folder, name, "no-store")).body, chunks.map((_, i) => length(i)))) {
    if (number >= cached) {
      if ((await sha256(chunk)) !== chunks[number])
        throw new FolderError(
          `${name} is not what model.json names: chunk ${number} has another SHA-256. Copy it again.`,
        );
      store?.put(key(number), new Response(chunk)).catch(() => null); // nobody waits for it
      yield chunk;
    }
    number++;
  }
  if (number < chunks.length) throw new FolderError(`${name} is cut short. Copy it again.`);
}

/** A stream in pieces of these lengths; those that are whole. */
async function* pieces(stream, lengths) {
  const reader = stream.getReader();
  let rest = new Uint8Array(0);
  for (const length of lengths) {
    const piece = new Uint8Array(length);
    for (let used = 0; used < length; ) {
      if (!rest.length) {
        const { done, value } = await reader.read();
        if (done) return;
        rest = value;
      }
      const part = rest.subarray(0, length - used);
      piece.set(part, used);
      used += part.length;
      rest = rest.subarray(part.length);
    }
    yield piece;
  }
  await reader.cancel();
}
