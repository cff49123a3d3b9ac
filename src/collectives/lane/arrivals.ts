/**
 * The word in which ranks count themselves in at an operation, so that all of them agree whether it goes by the lane:
 * either all came in time, or one closed it and all take the ordinary way. Terms: a tag is an operation's number,
 * shortened; a count of `CLOSED` says that the lane is not for this operation. Invariant: a word only ever goes from
 * an older operation to a newer one, and within one from count to count + 1 or to `CLOSED`.
 */
const TAG_BITS = 22;
const TAG_MASK = 2 ** TAG_BITS - 1;
const COUNT_BITS = 8;
const CLOSED = 255;

/** Counts this rank in; false if the operation is closed. */
export function arrive(words: Int32Array, at: number, sequence: number): boolean {
  const tag = sequence & TAG_MASK;
  for (;;) {
    const current = Atomics.load(words, at);
    const currentTag = current >>> COUNT_BITS;
    if (currentTag === tag) {
      if ((current & CLOSED) === CLOSED) return false;
      if (Atomics.compareExchange(words, at, current, current + 1) === current) return true;
    } else if (isOlder(currentTag, tag)) {
      if (Atomics.compareExchange(words, at, current, (tag << COUNT_BITS) | 1) === current) return true;
    } else return false;
  }
}

/** What the word is when so many ranks have come. */
export function countOf(sequence: number, ranks: number): number {
  return ((sequence & TAG_MASK) << COUNT_BITS) | ranks;
}

/** Closes the operation unless all ranks have come; true if it is closed. */
export function close(words: Int32Array, at: number, sequence: number, ranks: number): boolean {
  const tag = sequence & TAG_MASK;
  const complete = countOf(sequence, ranks);
  for (;;) {
    const current = Atomics.load(words, at);
    if (current === complete) return false;
    const currentTag = current >>> COUNT_BITS;
    if (currentTag !== tag && !isOlder(currentTag, tag)) return true;
    const closed = (tag << COUNT_BITS) | CLOSED;
    if (current === closed || Atomics.compareExchange(words, at, current, closed) === current) return true;
  }
}

/** Whether the first of two numbers, both shortened, comes before the second. */
export function isOlder(tag: number, than: number): boolean {
  return tag !== than && ((than - tag) & TAG_MASK) < 2 ** (TAG_BITS - 1);
}
