/** Sizes: whole numbers, or sums [[factor, ...atoms], ...] whose atoms are names of dims or calls
 * [function, a, b]; and errors. */

/** What went wrong, at which node of the model, and why. */
export class RlxError extends Error {
  constructor(message, facts = {}) {
    super(message, facts.cause === undefined ? undefined : { cause: facts.cause });
    this.name = "RlxError";
    this.node = facts.node ?? "";
    this.reason = facts.reason ?? message;
    this.isOfFolder = false;
    this.isSlower = facts.isSlower ?? false; // does another engine do it faster?
  }
}

/** A file of the folder cannot be had, or is not what it was: no other engine would do better. */
export class FolderError extends RlxError {
  constructor(message, facts = {}) {
    super(message, facts);
    this.isOfFolder = true;
  }
}

const CALLS = {
  "//": (a, b) => (b ? Math.floor(a / b) : 0),
  "%": (a, b) => (b ? a - Math.floor(a / b) * b : 0),
  max: Math.max,
  min: Math.min,
};

/** The value of a dim. */
export function evaluate(dim, sizes) {
  if (typeof dim === "number") return dim;
  let total = 0;
  for (const term of dim) {
    let product = term[0];
    for (let i = 1; i < term.length; i++) {
      const atom = term[i];
      if (typeof atom !== "string") {
        product *= CALLS[atom[0]](evaluate(atom[1], sizes), evaluate(atom[2], sizes));
      } else if (Object.hasOwn(sizes, atom)) product *= sizes[atom];
      else throw new RlxError(`the size ${atom} is not known yet.`);
    }
    total += product;
  }
  return total;
}

/** The names in a dim whose sizes are not known. */
export function unknownIn(dim, sizes) {
  const found = new Set();
  const visit = (d) => {
    if (typeof d === "number") return;
    for (const [, ...atoms] of d)
      for (const a of atoms)
        if (typeof a !== "string") a.slice(1).forEach(visit);
        else if (!Object.hasOwn(sizes, a)) found.add(a);
  };
  visit(dim);
  return found;
}

/** The sizes of named dims, read off the dims of arrays: by those that are linear in one
 * name that is not known yet. */
export function bindSizes(declared, given, known, range) {
  const sizes = { ...known };
  const pairs = [];
  const mismatch = ({ name, shape }, found) =>
    new RlxError(`input "${name}" is ${shape}, got the dims ${found.join(" × ")}.`);
  declared.forEach(({ dims }, i) => {
    const found = given[i];
    if (found && found.length !== dims.length) throw mismatch(declared[i], found);
    if (found) dims.forEach((dim, axis) => pairs.push([dim, found[axis], i]));
  });
  for (let again = true; again; ) {
    again = false;
    for (const [dim, size] of pairs) {
      const names = unknownIn(dim, sizes);
      if (names.size !== 1) continue;
      const [only] = names;
      const [a, b] = [1, 0].map((v) => evaluate(dim, { ...sizes, [only]: v }));
      const value = (size - b) / (a - b);
      if (!Number.isInteger(value) || evaluate(dim, { ...sizes, [only]: value }) !== size) continue;
      sizes[only] = value;
      again = true;
    }
  }
  for (const [name, size] of Object.entries(sizes)) {
    if (Object.hasOwn(known, name)) continue;
    const [low, high] = range(name);
    if (size < low || (high !== null && size > high))
      throw new RlxError(`the dim ${name} is ${size}; the model takes ${low} to ${high ?? "any"}.`);
  }
  for (const [dim, size, i] of pairs)
    if (unknownIn(dim, sizes).size || evaluate(dim, sizes) !== size)
      throw mismatch(declared[i], given[i]);
  return sizes;
}
