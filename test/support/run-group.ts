/**
 * Runs the ranks of a group in one process, interleaved by the event loop: `runGroup({ size }, rank => ...)` as the
 * house's tests use it. For ranks in processes of their own see `test/support/rank-processes.ts`.
 */
import { Random } from '../../src/base/index.ts';
import { Group } from '../../src/cluster/index.ts';
import { Kernels } from '../../src/kernels/index.ts';
import { SharedSpace } from '../../src/memory/index.ts';
import type { DType, Region } from '../../src/memory/index.ts';
import { Progress } from '../../src/progress/index.ts';
import type { ProgressOptions } from '../../src/progress/index.ts';
import { InProcessNetwork } from './in-process-transport.ts';

export interface RunOptions {
  readonly size: number;
  /** Decides in which order messages arrive. Default: as they were sent. */
  readonly seed?: number;
  readonly shared?: boolean;
  /** The host of each rank; default one host. */
  readonly hosts?: readonly string[];
  readonly progress?: ProgressOptions;
}

export interface RankContext {
  readonly group: Group;
  readonly rank: number;
  readonly network: InProcessNetwork;
  readonly region: <T extends DType>(dtype: T, values: readonly number[]) => Region<T>;
  /** A further group of these ranks; every rank of it must ask. */
  readonly subgroup: (id: number, ranks: readonly number[]) => Group;
}

export async function runGroup<T>(
  options: RunOptions,
  rank: (context: RankContext) => Promise<T>,
): Promise<T[]> {
  const { size } = options;
  const random = options.seed === undefined ? undefined : new Random(options.seed);
  const network = new InProcessNetwork({
    shared: options.shared ?? false,
    ...(random ? { random: () => random.uniform() } : {}),
  });
  const space = SharedSpace.create({ maxBytes: 256 * 2 ** 20 });
  const kernels = Kernels.create(space);
  const segment = space.allocate(64 * 2 ** 20);
  const addresses = Array.from({ length: size }, (_, member) => ({
    member,
    title: `process ${1000 + member} on test`,
    host: options.hosts?.[member] ?? 'test',
    address: {},
  }));
  const engines = addresses.map(
    ({ member }) => new Progress(network.attach(member, space), options.progress),
  );
  try {
    const contexts = engines.map((progress, member): RankContext => ({
      group: new Group(1, addresses, progress, kernels),
      rank: member,
      network,
      region: (dtype, values) => {
        const region = segment.allocate(dtype, values.length);
        values.forEach((value, i) => (region.view[i] = value));
        return region;
      },
      subgroup: (id, ranks) =>
        new Group(
          id,
          ranks.map((each) => addresses[each]!),
          progress,
          kernels,
        ),
    }));
    return await Promise.all(contexts.map(rank));
  } finally {
    for (const engine of engines) engine.close();
  }
}
