/**
 * Turns of the sides of a benchmark, round after round: whatever slows the machine for a while hits all of them. Knows nothing of
 * what is measured. Invariant: one side at a time is at work, and every round begins with another one.
 */
export interface AlternatingSide<Figures> {
  readonly takeTurn: () => Promise<Figures>;
  /** One for each round so far. */
  readonly turns: Figures[];
}

export async function alternate<Figures>(
  sides: readonly AlternatingSide<Figures>[],
  rounds: number,
  onRound: (round: number) => void,
): Promise<void> {
  for (let round = 0; round < rounds; round++) {
    onRound(round);
    for (let i = 0; i < sides.length; i++) {
      const side = sides[(i + round) % sides.length]!;
      side.turns.push(await side.takeTurn());
    }
  }
}
