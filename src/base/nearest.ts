/** Suggestions for mistyped words: the known word that takes the fewest edits, if that is a plausible mistake. */

/** Edits (insert, delete, replace, swap neighbours) between two words. */
export function editDistance(a: string, b: string): number {
  let before: number[] = [];
  let last = Array.from({ length: b.length + 1 }, (_, j) => j);
  for (let i = 1; i <= a.length; i++) {
    const row = [i];
    for (let j = 1; j <= b.length; j++) {
      const replaced = last[j - 1]! + (a[i - 1] === b[j - 1] ? 0 : 1);
      let best = Math.min(replaced, last[j]! + 1, row[j - 1]! + 1);
      if (i > 1 && j > 1 && a[i - 1] === b[j - 2] && a[i - 2] === b[j - 1])
        best = Math.min(best, before[j - 2]! + 1);
      row.push(best);
    }
    before = last;
    last = row;
  }
  return last[b.length]!;
}

/** The nearest known word, or undefined if none is near: more than a third of the letters (at least two) differ. */
export function nearest(word: string, known: Iterable<string>): string | undefined {
  let best: string | undefined;
  // Beyond this length nobody has mistyped anything, and the distance takes quadratic time.
  let limit = word.length > 64 ? -1 : Math.max(2, Math.floor(word.length / 3));
  for (const candidate of known) {
    const distance = editDistance(word.toLowerCase(), candidate.toLowerCase());
    if (distance <= limit && distance < Math.max(word.length, candidate.length)) {
      best = candidate;
      limit = distance - 1;
    }
  }
  return best;
}

/** ` Did you mean "x"?` or nothing; to be put after a sentence. */
export function didYouMean(word: string, known: Iterable<string>, prefix = ''): string {
  const found = nearest(word, known);
  return found === undefined ? '' : ` Did you mean "${prefix}${found}"?`;
}
