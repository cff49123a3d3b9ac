/**
 * One rank of Open MPI in `bench exchange`, started by mpirun with what `peer-commands.ts` gives it: sums a model's
 * gradients tensor by tensor with MPI_Allreduce and updates each tensor by our kernel while its sums are still in the
 * cache. A program; nothing imports it. Invariants: only exchanges are timed; the last ones of a turn begin with fresh
 * weights, which are checked bit by bit.
 */
import { UsageError } from '../../base/index.ts';
import { createOptimizer, Kernels } from '../../kernels/index.ts';
import { SharedSpace } from '../../memory/index.ts';
import type { Region } from '../../memory/index.ts';
import { parseAssignment, serveTurns } from '../allreduce/index.ts';
import type { Turn, TurnResult } from '../allreduce/index.ts';
import {
  checksum,
  CHECKED_EXCHANGES,
  expectedWeights,
  fillGradient,
  formatChecksum,
  hasWeights,
  LEARNING_RATE,
  MOMENTUM,
} from './known-exchange.ts';
import { openMpiSums } from './open-mpi-sums.ts';
import type { OpenMpiSums } from './open-mpi-sums.ts';
import { OPEN_MPI_VARIANTS, parseModel } from './peer-commands.ts';
import type { OpenMpiVariant } from './peer-commands.ts';

type Vector = Region<'float32'>;

interface Tensor {
  readonly weights: Vector;
  readonly gradient: Vector;
  /** Where the sums go in the variant with two buffers. */
  readonly sums: Vector;
  readonly slots: { readonly momentum_buffer: Vector };
}

const { control } = parseAssignment(process.argv[2]);
const lengths = parseModel(process.argv[3]);
const mpi = enterJob();
const elements = lengths.reduce((sum, length) => sum + length, 0);
const space = SharedSpace.create();
const kernels = Kernels.create(space);
const optimizer = createOptimizer(kernels, { name: 'sgd', lr: LEARNING_RATE, momentum: MOMENTUM });
const [weights, momentum, gradient, sums] = [vector(), vector(), vector(), vector()] as const;
const tensors = cut();
await serveTurns(control, mpi.rank, (turn) => Promise.resolve(take(turn)));
mpi.close();

function enterJob(): OpenMpiSums {
  try {
    return openMpiSums();
  } catch (error) {
    // The coordinator looks for this word, and leaves the peer out.
    process.stderr.write(`missing: ${error instanceof Error ? error.message : String(error)}\n`);
    process.exit(1);
  }
}

/** One buffer for all tensors, on huge pages; its memory is taken when it is first written. */
function vector(): Vector {
  return space.allocate(elements * 4).allocate('float32', elements);
}

function cut(): Tensor[] {
  let start = 0;
  return lengths.map((length) => {
    const of = (whole: Vector): Vector => whole.slice(start, length);
    const tensor = {
      weights: of(weights),
      gradient: of(gradient),
      sums: of(sums),
      slots: { momentum_buffer: of(momentum) },
    };
    start += length;
    return tensor;
  });
}

function take({ bytes, iterations, burst, algorithm }: Turn): TurnResult {
  const variant = OPEN_MPI_VARIANTS.find((name) => name === algorithm);
  if (bytes !== elements * 4 || !variant) {
    throw new UsageError(
      'INVALID_ARGUMENT',
      `rank ${mpi.rank} has a model of ${elements * 4} bytes and the variants ${OPEN_MPI_VARIANTS.join(', ')}, but the turn is of ${bytes} bytes and '${algorithm}'; ask for one of these`,
      { rank: mpi.rank, bytes, algorithm },
    );
  }
  const checked = Math.min(CHECKED_EXCHANGES, iterations);
  let milliseconds = 0;
  for (let left = iterations - checked; left > 0; left -= burst) {
    reset();
    milliseconds += timed(Math.min(left, burst), 0, variant);
  }
  reset();
  // From the same gradients each time, as a backward pass would write them, so that all variants have the same result.
  for (let done = 0; done < checked; done++) milliseconds += timed(1, done, variant);
  return {
    micros: (milliseconds * 1e3) / iterations,
    ok: hasWeights(weights.view, expectedWeights(mpi.size, checked)),
    algorithm: formatChecksum(checksum(weights.view)),
  };
}

function reset(): void {
  kernels.fill(weights, 0);
  kernels.fill(momentum, 0);
}

/** Milliseconds of so many exchanges after `done` others; sums in place grow with each of them. */
function timed(exchanges: number, done: number, variant: OpenMpiVariant): number {
  fillGradient(gradient.view, mpi.rank);
  mpi.barrier();
  const start = performance.now();
  for (let t = done + 1; t <= done + exchanges; t++) exchange(t, variant);
  return performance.now() - start;
}

function exchange(t: number, variant: OpenMpiVariant): void {
  for (const tensor of tensors) {
    const target = variant === 'in-place' ? tensor.gradient : tensor.sums;
    mpi.sum(target, tensor.gradient);
    optimizer.update({ t, parameter: tensor.weights, gradient: target, slots: tensor.slots });
  }
}
