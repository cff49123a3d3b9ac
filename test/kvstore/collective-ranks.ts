/**
 * Ranks of one process that live as long as a test, in groups: what tests of stores that meet in collectives run on. Like
 * `test/support/run-group.ts`, which ends its ranks with a function.
 */
import { Random } from '../../src/base/index.ts';
import { Group } from '../../src/cluster/index.ts';
import { Kernels } from '../../src/kernels/index.ts';
import type { KVStore } from '../../src/kvstore/index.ts';
import { SharedSpace } from '../../src/memory/index.ts';
import { Progress } from '../../src/progress/index.ts';
import { InProcessNetwork } from '../support/in-process-transport.ts';

export interface Ranks {
  readonly space: SharedSpace;
  /** By worker: its group, in which it is the one or other rank. */
  readonly groups: readonly Group[];
  /** As if the worker's process had been killed. */
  kill(worker: number): void;
  close(): void;
}

export interface RanksOptions {
  /** Workers of each group. */
  readonly sizes: readonly number[];
  /** Decides in which order messages arrive. Default: as they were sent. */
  readonly seed?: number;
  /** Whether ranks work on each other's memory. Default false. */
  readonly shared?: boolean;
}

export function openRanks({ sizes, seed, shared = false }: RanksOptions): Ranks {
  const random = seed === undefined ? undefined : new Random(seed);
  const network = new InProcessNetwork({ shared, ...(random ? { random: () => random.uniform() } : {}) });
  const space = SharedSpace.create({ maxBytes: 256 * 2 ** 20 });
  const kernels = Kernels.create(space);
  let first = 0;
  const engines: Progress[] = [];
  const groups = sizes.flatMap((size, id) => {
    const members = Array.from({ length: size }, (_, rank) => ({
      member: first + rank,
      title: `process ${1000 + first + rank} on test`,
      host: 'test',
      address: {},
    }));
    first += size;
    return members.map(({ member }) => {
      const progress = new Progress(network.attach(member, space), { deadlineMs: 20_000 });
      engines.push(progress);
      return new Group(id + 1, members, progress, kernels);
    });
  });
  const close = () => {
    for (const engine of engines) engine.close();
  };
  return { space, groups, kill: (worker) => network.kill(worker), close };
}

/** Sizes of groups for so many workers. */
export function inGroupsOf(size: number, workers: number): number[] {
  return Array.from({ length: Math.ceil(workers / size) }, (_, i) => Math.min(size, workers - i * size));
}

export const filled = (length: number, value: number) => new Float32Array(length).fill(value);

export async function valueOf(store: KVStore, key: string, length: number): Promise<number[]> {
  const into = filled(length, NaN);
  await store.pull({ key, into });
  return [...into];
}
