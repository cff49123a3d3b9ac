/**
 * Makes neighbours of chunks that follow each other: chunks of the same length on one server are interchangeable, so they can
 * be dealt to its cores in runs instead of one by one. A core then reads memory, and the network sends it, in longer
 * stretches (what a processor fetches ahead beyond a chunk is its own next one), while long keys are still spread over all
 * cores. Pure. Invariant: every core keeps as many chunks of every length as it had, so all loads stay as they were.
 */
import type { PlacedChunk } from './placement.ts';

/** Chunks that stay together; 256 KB at the default length, beyond which nothing is gained. */
const RUN_LENGTH = 8;

export function dealInRuns(chunks: readonly PlacedChunk[]): readonly PlacedChunk[] {
  const alike = new Map<string, number[]>();
  chunks.forEach(({ server, length }, i) => {
    const name = `${server} ${length}`;
    const group = alike.get(name);
    if (group) group.push(i);
    else alike.set(name, [i]);
  });
  const dealt = [...chunks];
  for (const group of alike.values()) {
    const left = new Map<number, number>();
    for (const i of group) left.set(chunks[i]!.core, (left.get(chunks[i]!.core) ?? 0) + 1);
    for (let at = 0; at < group.length;) {
      const [core, count] = [...left].reduce((most, one) => (one[1] > most[1] ? one : most));
      const run = Math.min(RUN_LENGTH, count);
      for (const i of group.slice(at, at + run)) dealt[i] = { ...chunks[i]!, core };
      left.set(core, count - run);
      at += run;
    }
  }
  return dealt;
}
