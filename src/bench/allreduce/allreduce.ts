/**
 * `bench allreduce`: the same sums of float32 vectors by Tributary, by Open MPI over the same class of transport, and by
 * gloo, in one run. For every size each side's variants are tried and its turns are made equally long; then the sides
 * alternate, and the medians are compared. Invariant: a figure counts only if the sums behind it were right.
 */
import { mkdir, mkdtemp, rm } from 'node:fs/promises';
import { cpus, tmpdir } from 'node:os';
import { join } from 'node:path';
import { TributaryError, UsageError } from '../../base/index.ts';
import { ALL_REDUCE_ALGORITHMS } from '../../collectives/index.ts';
import { describeMachine } from '../machine.ts';
import type { Machine } from '../machine.ts';
import { compileOpenMpiPeer, glooGroup, openMpiGroup, ourGroup } from './group-command.ts';
import type { BenchTransport, MpiClass } from './group-command.ts';
import { openMeeting } from './meeting.ts';
import { PeerGroup } from './peer-group.ts';
import type { GroupCommand, PeerGroupOptions } from './peer-group.ts';
import { calibrate, race } from './turns.ts';
import type { Contender } from './turns.ts';

export interface AllReduceBenchOptions {
  /** What our ranks use. */
  readonly transport: BenchTransport;
  /** Processes that sum. Default 2. */
  readonly ranks?: number | undefined;
  /** Lengths of the vectors in bytes, multiples of 4. Default 1 KB to 128 MB. */
  readonly sizes?: readonly number[] | undefined;
  /** Of ours, each a case of its own; 'auto' lets the group choose. Default only that. */
  readonly algorithms?: readonly string[] | undefined;
  /** Alternating rounds, at least 5. Default 7. */
  readonly rounds?: number | undefined;
  /** About how long a turn of one side takes, in milliseconds; it has at least 3 operations. Default 60. */
  readonly turnMs?: number | undefined;
  /** What Open MPI uses under our MPI transport and against it. Default 'vader', which is shared memory. */
  readonly mpiClass?: MpiClass | undefined;
  /** Environment for all processes. */
  readonly env: Readonly<Record<string, string | undefined>>;
  /** Our rank program. Default: the one of this package. */
  readonly rankProgram?: string | undefined;
  readonly signal?: AbortSignal | undefined;
  /** What is going on, in words. */
  readonly onProgress?: ((message: string) => void) | undefined;
}

export interface AllReduceCase {
  readonly transport: BenchTransport;
  readonly ranks: number;
  readonly bytes: number;
  /** Of ours; what was chosen, where that was left open and told. */
  readonly algorithm: string;
  /** Microseconds for each operation, median of the rounds. */
  readonly oursUs: number;
  /** The best variant of Open MPI; null where it is absent. */
  readonly openmpiUs: number | null;
  readonly glooUs: number | null;
  /** Open MPI's time / ours. */
  readonly ratioOpenmpi: number | null;
  readonly ratioGloo: number | null;
  /** Ours: bytes / time, in GB/s. */
  readonly algbwGBs: number;
  /** Ours: what every link of a ring would carry, algbw * 2 (n - 1) / n. */
  readonly busbwGBs: number;
  readonly openmpiVariant: string | null;
}

export interface AllReduceBench {
  readonly bench: 'allreduce';
  readonly date: string;
  readonly machine: Machine;
  readonly transport: BenchTransport;
  readonly ranks: number;
  /** How each side was started, and how it was measured. */
  readonly configuration: Readonly<Record<string, unknown>>;
  /** What was left out, and why. */
  readonly skipped: readonly string[];
  /** What to know when reading the figures, such as ranks that shared cores. */
  readonly notes: readonly string[];
  readonly cases: readonly AllReduceCase[];
}

const KB = 1024;
const MB = 1024 * KB;
export const DEFAULT_SIZES: readonly number[] = [
  ...[1, 4, 8, 16, 64, 256].map((size) => size * KB),
  ...[1, 4, 16, 32, 64, 128].map((size) => size * MB),
];
const WARM_UP_SIZES: readonly number[] = [KB, 64 * KB, MB];
const WARM_UP_MS = 500;
const LEAST_ROUNDS = 5;
const MAX_RANKS = 256;

/** Every side, as far as it is there. */
interface Sides {
  readonly ours: PeerGroup;
  readonly openMpi: readonly PeerGroup[];
  readonly gloo: PeerGroup | undefined;
}

export async function benchAllReduce(options: AllReduceBenchOptions): Promise<AllReduceBench> {
  const { transport, ranks = 2, sizes = DEFAULT_SIZES, turnMs = 60 } = options;
  checkOptions(ranks, sizes);
  checkAlgorithms(options.algorithms ?? []);
  const rounds = Math.max(LEAST_ROUNDS, options.rounds ?? 7);
  const onProgress = options.onProgress ?? (() => undefined);
  const folder = await mkdtemp(join(tmpdir(), 'tributary-bench-'));
  const groups: PeerGroup[] = [];
  const onClose: { close(): Promise<void> }[] = [];
  try {
    const { sides, skipped } = await startSides(options, ranks, folder, groups, onClose, onProgress);
    const cases: AllReduceCase[] = [];
    await warmUp(groups, ranks);
    for (const bytes of sizes) {
      for (const algorithm of options.algorithms ?? ['auto']) {
        options.signal?.throwIfAborted();
        onProgress(`${formatBytes(bytes)}, ${ranks} ranks, ${algorithm}`);
        cases.push(await runCase(sides, { transport, ranks, bytes, algorithm, rounds, turnMs }));
      }
    }
    return {
      bench: 'allreduce',
      date: new Date().toISOString(),
      machine: describeMachine(),
      transport,
      ranks,
      configuration: {
        operation: 'sum of float32, every result checked',
        rounds,
        turnMs,
        statistic: "median of alternating rounds; a turn's time is its slowest rank's",
        sides: groups.map((group) => ({
          name: group.command.name,
          command: group.commandLine,
          environment: group.command.settings,
        })),
      },
      skipped,
      notes: notesOn(ranks),
      cases,
    };
  } finally {
    await Promise.all(groups.map((group) => group.close()));
    await Promise.all(onClose.map((part) => part.close()));
    await rm(folder, { recursive: true, force: true });
  }
}

/** Starts every side that is installed; those that run are in `groups` even if a later one fails. */
async function startSides(
  options: AllReduceBenchOptions,
  ranks: number,
  folder: string,
  groups: PeerGroup[],
  onClose: { close(): Promise<void> }[],
  onProgress: (message: string) => void,
): Promise<{ readonly sides: Sides; readonly skipped: readonly string[] }> {
  const { transport, env, rankProgram } = options;
  const mpiClass =
    transport === 'mpi' ? (options.mpiClass ?? 'vader') : transport === 'tcp' ? 'tcp' : 'vader';
  const skipped: string[] = [];
  const groupOptions: PeerGroupOptions = { signal: options.signal };
  const start = async (command: GroupCommand): Promise<PeerGroup> => {
    onProgress(`starting ${command.name}`);
    const group = await PeerGroup.start(command, groupOptions);
    groups.push(group);
    return group;
  };
  /** Undefined where what the peer needs is not installed. */
  const ifInstalled = async <T>(name: string, begin: () => Promise<T>): Promise<T | undefined> => {
    try {
      return await begin();
    } catch (error) {
      if (!(error instanceof TributaryError) || error.code !== 'MISSING_COMPONENT') throw error;
      skipped.push(`${name}: ${error.message}`);
      onProgress(`${name} is left out: ${error.message}`);
      return undefined;
    }
  };
  const meetingFolder = join(folder, 'ranks');
  await mkdir(meetingFolder);
  if (transport !== 'mpi') onClose.push(await openMeeting(meetingFolder, ranks));
  const ours = await start(ourGroup({ transport, ranks, folder: meetingFolder, env, mpiClass, rankProgram }));
  const openMpi = await ifInstalled('Open MPI', async () => {
    const program = await compileOpenMpiPeer(folder, env);
    const started: PeerGroup[] = [];
    for (const raisedMalloc of [false, true])
      started.push(await start(openMpiGroup({ program, ranks, mpiClass, raisedMalloc, env })));
    return started;
  });
  const gloo = await ifInstalled('gloo', () => start(glooGroup({ ranks, folder, env })));
  return { sides: { ours, openMpi: openMpi ?? [], gloo }, skipped };
}

/** Compilers need to have seen the code, and connections to be there, before anything is timed. */
async function warmUp(groups: readonly PeerGroup[], ranks: number): Promise<void> {
  for (const group of groups) {
    const variant = group.command.name.startsWith('Tributary') ? 'auto' : 'in-place';
    for (const bytes of WARM_UP_SIZES) {
      const { turn } = await calibrate(group, [variant], { bytes, ranks, turnMs: WARM_UP_MS });
      await group.turn(turn);
    }
  }
}

interface CasePlan {
  readonly transport: BenchTransport;
  readonly ranks: number;
  readonly bytes: number;
  readonly algorithm: string;
  readonly rounds: number;
  readonly turnMs: number;
}

async function runCase(sides: Sides, plan: CasePlan): Promise<AllReduceCase> {
  const { transport, ranks, bytes, algorithm, rounds, turnMs } = plan;
  const settings = { bytes, ranks, turnMs };
  const ours = await calibrate(sides.ours, [algorithm], settings);
  const openMpi: Contender[] = [];
  for (const group of sides.openMpi) openMpi.push(await calibrate(group, ['in-place', 'separate'], settings));
  const gloo = sides.gloo ? await calibrate(sides.gloo, ['in-place'], settings) : undefined;
  const contenders = [ours, ...openMpi, ...(gloo ? [gloo] : [])];
  const medians = await race(contenders, rounds);
  const oursUs = medians.get(ours)!;
  const glooUs = gloo ? medians.get(gloo)! : null;
  const best = [...openMpi].sort((a, b) => medians.get(a)! - medians.get(b)!)[0];
  const openmpiUs = best ? medians.get(best)! : null;
  const algbwGBs = bytes / oursUs / 1e3;
  return {
    transport,
    ranks,
    bytes,
    algorithm: ours.chosen ?? algorithm,
    oursUs,
    openmpiUs,
    glooUs,
    ratioOpenmpi: openmpiUs === null ? null : openmpiUs / oursUs,
    ratioGloo: glooUs === null ? null : glooUs / oursUs,
    algbwGBs,
    busbwGBs: (algbwGBs * 2 * (ranks - 1)) / ranks,
    openmpiVariant: best ? `${best.group.command.name}, ${best.turn.algorithm}` : null,
  };
}

function notesOn(ranks: number): string[] {
  const cores = cpus().length;
  if (ranks <= cores) return [];
  return [`${ranks} ranks share ${cores} cores: every side waits for the scheduler of the system.`];
}

function checkOptions(ranks: number, sizes: readonly number[]): void {
  if (!Number.isInteger(ranks) || ranks < 1 || ranks > MAX_RANKS) {
    throw new UsageError(
      'INVALID_ARGUMENT',
      `ranks is ${ranks}; give a whole number from 1 to ${MAX_RANKS}`,
      {
        ranks,
      },
    );
  }
  const wrong = sizes.find((bytes) => !Number.isSafeInteger(bytes) || bytes < 4 || bytes % 4 !== 0);
  if (wrong !== undefined) {
    throw new UsageError(
      'INVALID_ARGUMENT',
      `a size of ${wrong} bytes holds no float32 vector; give multiples of 4`,
      {
        bytes: wrong,
      },
    );
  }
}

/** Before anything is started: a rank would only find out after a while. */
function checkAlgorithms(algorithms: readonly string[]): void {
  const known: readonly string[] = ['auto', ...ALL_REDUCE_ALGORITHMS];
  const wrong = algorithms.find((name) => !known.includes(name));
  if (wrong === undefined) return;
  throw new UsageError(
    'INVALID_ARGUMENT',
    `there is no algorithm '${wrong}'; give one or several of ${known.join(', ')}`,
    { algorithm: wrong },
  );
}

/** '64 KB', '1 MB'. */
export function formatBytes(bytes: number): string {
  if (bytes >= MB && bytes % MB === 0) return `${bytes / MB} MB`;
  return bytes % KB === 0 ? `${bytes / KB} KB` : `${bytes} B`;
}
