/**
 * For how long messages were under way in a step. Those that follow closely overlap, on the link as in the thread that sends them: what
 * counts is when at least one was, which is how a plan adds up messages that go one after the other. Measures nothing itself.
 */
export interface Passage {
  readonly startedMs: number;
  readonly endedMs: number;
}

export interface UnderWay {
  readonly exchangeMs: number;
  /** How much of it was before `computedMs`. */
  readonly hiddenMs: number;
}

export function underWay(messages: readonly Passage[], computedMs = Infinity): UnderWay {
  let [before, exchangeMs, hiddenMs] = [0, 0, 0];
  for (const { startedMs, endedMs } of [...messages].sort((a, b) => a.startedMs - b.startedMs)) {
    const from = Math.max(before, startedMs);
    exchangeMs += Math.max(0, endedMs - from);
    hiddenMs += Math.max(0, Math.min(endedMs, computedMs) - from);
    before = Math.max(before, endedMs);
  }
  return { exchangeMs, hiddenMs };
}
