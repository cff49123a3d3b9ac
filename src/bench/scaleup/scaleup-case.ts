/**
 * The result of `bench scaleup` as data, and the arithmetic of a case: speed-up, efficiency, and the bytes that a step moves
 * between a learner and the weights. Measures nothing. Invariant: ratios are those of the rates in the same case.
 */
import type { UpdateMode } from '../../learners/index.ts';
import type { Machine } from '../machine.ts';

/** Workers that exchange gradients after every batch, for comparison. */
export const SYNCHRONOUS = 'synchronous';
export type ScaleupMode = UpdateMode | typeof SYNCHRONOUS;

export interface ScaleupCase {
  /** Samples in a batch of one learner. */
  readonly batch: number;
  readonly learners: number;
  readonly mode: ScaleupMode;
  /** Of all learners together. */
  readonly samplesPerSec: number;
  /** Of one learner, which exchanges with nobody. */
  readonly singleSamplesPerSec: number;
  /** Of as many independent copies as learners, at the same time. */
  readonly ceilingSamplesPerSec: number;
  /** To one learner. */
  readonly speedup: number;
  /** Share of the ceiling. */
  readonly efficiency: number;
  /** Updates by others between reading the weights and applying the gradient, mean over all steps. */
  readonly meanStaleness: number;
  /** See `BYTES_FORMULA`. */
  readonly bytesPerStep: number;
  readonly bytesPerSec: number;
  /** PyTorch DDP over gloo with as many processes; null where it was not measured. For one learner: PyTorch without DDP. */
  readonly ddpSamplesPerSec: number | null;
  /** PyTorch with an exchange by hand on MPI, as many processes; null where it was not measured. For one learner: its own update, no exchange. */
  readonly mpiSamplesPerSec: number | null;
  /** PyTorch in one process, with its own optimizers: what the speed-ups of PyTorch peers are relative to. */
  readonly torchSamplesPerSec: number | null;
}

export interface ScaleupBench {
  readonly bench: 'scaleup';
  /** ISO 8601. */
  readonly date: string;
  readonly machine: Machine;
  /** Name of the file. */
  readonly data: string;
  readonly configuration: Readonly<Record<string, unknown>>;
  /** What was left out, and why. */
  readonly skipped: readonly string[];
  readonly notes: readonly string[];
  readonly cases: readonly ScaleupCase[];
}

/** What a step touches. */
export interface StepSize {
  /** Elements of all parameters that have a dense gradient. */
  readonly denseElements: number;
  /** Rows of the embedding table that the batch touches. */
  readonly rows: number;
  /** Of the whole table. */
  readonly tableRows: number;
  readonly rowLength: number;
  /** Numbers that the optimizer keeps for each parameter: 2 for Adam. */
  readonly slots: number;
}

export const BYTES_FORMULA =
  'bytes of a step = 4 * (dense elements + touched rows * row length) * (4 + 2 * optimizer slots): computing reads the weights once; the update reads the gradient, and reads and writes the parameter and each slot. Rows are counted once for each batch (mean over an epoch). Locked modes compute on a copy, which reads and writes all weights: + 8 * (dense elements + table rows * row length), less where nothing was new. In lock step each process reads its share of all gradients and all results, and all rows, which it then updates: + 8 * (dense elements + learners * touched rows * row length) + 4 * (learners - 1) * touched rows * row length * (3 + 2 * optimizer slots).';

/** Between a learner and the weights, as `BYTES_FORMULA` says; a float is 4 bytes. */
export function bytesPerStep(size: StepSize, mode: ScaleupMode, learners: number): number {
  const { denseElements, rows, tableRows, rowLength, slots } = size;
  const [computeReads, gradientReads, parameterReadsAndWrites, slotReadsAndWrites] = [1, 1, 2, 2 * slots];
  const updateTouches = gradientReads + parameterReadsAndWrites + slotReadsAndWrites;
  const own = 4 * (computeReads + updateTouches) * (denseElements + rows * rowLength);
  if (mode === SYNCHRONOUS) {
    const exchanged = learners === 1 ? 0 : 2 * 4 * (denseElements + learners * rows * rowLength);
    return own + exchanged + 4 * updateTouches * (learners - 1) * rows * rowLength;
  }
  const copied = mode.endsWith(' locked') ? denseElements + tableRows * rowLength : 0;
  return own + 2 * 4 * copied;
}

export type MeasuredCase = Omit<ScaleupCase, 'speedup' | 'efficiency' | 'bytesPerSec'> & {
  /** Mean over an epoch, whose last batch may be smaller. */
  readonly samplesPerStep: number;
};

export function caseOf({ samplesPerStep, ...measured }: MeasuredCase): ScaleupCase {
  const { samplesPerSec, singleSamplesPerSec, ceilingSamplesPerSec } = measured;
  return {
    ...measured,
    speedup: samplesPerSec / singleSamplesPerSec,
    efficiency: samplesPerSec / ceilingSamplesPerSec,
    bytesPerSec: (measured.bytesPerStep * samplesPerSec) / samplesPerStep,
  };
}
