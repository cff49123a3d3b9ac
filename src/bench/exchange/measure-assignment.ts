/**
 * Key by core against worker by core as cases of `bench exchange`: threads of this process instead of servers and workers.
 * Not the threads (assignment.ts). Invariant: both have as many threads as there are workers.
 */
import { ASSIGNMENTS, measureAssignments } from './assignment.ts';
import type { AssignmentCase } from './exchange-case.ts';
import { besideMemory, caseOf, modelBytes } from './measurement.ts';
import type { Measured, Setting } from './measurement.ts';

export async function measureAssignmentCases(setting: Setting): Promise<Measured> {
  const { workers, chunkBytes, aggregation, rounds, turnMs, onProgress } = setting;
  const { result, memory } = await besideMemory(setting, workers, () => {
    onProgress(`${rounds} rounds of key by core and worker by core, ${workers} threads`);
    const elements = modelBytes(setting) / 4;
    return measureAssignments({ elements, workers, chunkBytes, rounds, turnMs });
  });
  const cases = ASSIGNMENTS.map((assignment): AssignmentCase => ({
    ...caseOf(setting, [{ aggregation, chunkBytes }], memory, result[assignment]),
    assignment,
  }));
  return { cases, memory, skipped: [], sides: [] };
}
