/**
 * How each side of `bench allreduce` is started at its best: programs, arguments and environment. Not the conversation with
 * it (peer-group.ts). Invariant: the environment is the caller's plus settings that make the side faster; nothing is read
 * from this process's own.
 */
import { execFile } from 'node:child_process';
import { cpus } from 'node:os';
import { dirname, join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { promisify } from 'node:util';
import { z } from 'zod';
import { UsageError } from '../../base/index.ts';
import type { ControlAddress } from './control.ts';
import type { GroupCommand, ProcessCommand } from './peer-group.ts';

export type BenchTransport = 'shm' | 'tcp' | 'mpi';
type Environment = Readonly<Record<string, string | undefined>>;

/** What Open MPI moves messages by, in its own words. */
export type MpiClass = 'vader' | 'tcp';

/** Freed blocks stay mapped, which spares Open MPI the page faults of a fresh buffer in each call with large messages. */
export const RAISED_MALLOC = {
  MALLOC_MMAP_THRESHOLD_: '1073741824',
  MALLOC_TRIM_THRESHOLD_: '4294967296',
  MALLOC_TOP_PAD_: '268435456',
} as const;

/** mpirun otherwise refuses to run as root, as containers do, and leaves a folder behind when it is killed. */
export function mpirunEnvironment(folder: string): Record<string, string> {
  return {
    OMPI_ALLOW_RUN_AS_ROOT: '1',
    OMPI_ALLOW_RUN_AS_ROOT_CONFIRM: '1',
    OMPI_MCA_orte_tmpdir_base: folder,
  };
}
const COMPILE_TIMEOUT_MS = 60_000;
const INSTALL_OPEN_MPI = 'apt-get install openmpi-bin libopenmpi-dev';

/** The arguments of mpirun before the program. */
export function mpirunArguments(ranks: number, mpiClass: MpiClass): string[] {
  // Bound ranks are quicker, also where several share a core.
  const places =
    ranks <= cpus().length
      ? ['--bind-to', 'core']
      : ['--bind-to', 'core:overload-allowed', '--map-by', 'core', '--oversubscribe'];
  const network = mpiClass === 'tcp' ? ['--mca', 'btl_tcp_if_include', 'lo'] : [];
  return [
    ...['-n', `${ranks}`, ...places],
    ...['--mca', 'pml', 'ob1', '--mca', 'btl', `${mpiClass},self`, ...network],
  ];
}

/** Compiles the peer into a folder; returns the program. */
export async function compileOpenMpiPeer(folder: string, env: Environment): Promise<string> {
  // From the built package the sources are two folders up.
  const source = fileURLToPath(new URL('../../../src/bench/peers/openmpi_peer.c', import.meta.url));
  const program = join(folder, 'openmpi_peer');
  try {
    const options = { env: { ...env }, timeout: COMPILE_TIMEOUT_MS };
    await promisify(execFile)('mpicc', ['-O3', '-o', program, source, '-lm'], options);
  } catch (cause) {
    throw new UsageError(
      'MISSING_COMPONENT',
      `Open MPI cannot be compared with: mpicc does not compile its peer (${cause instanceof Error ? cause.message : String(cause)}). To compare with it: ${INSTALL_OPEN_MPI}`,
      { peer: 'Open MPI' },
      cause,
    );
  }
  return program;
}

export interface OpenMpiGroupOptions {
  /** What `compileOpenMpiPeer` made, in a folder of this run. */
  readonly program: string;
  readonly ranks: number;
  readonly mpiClass: MpiClass;
  readonly raisedMalloc: boolean;
  readonly env: Environment;
}

export function openMpiGroup(options: OpenMpiGroupOptions): GroupCommand {
  const { program, ranks, mpiClass, raisedMalloc, env } = options;
  const settings = raisedMalloc ? RAISED_MALLOC : {};
  return {
    name: raisedMalloc ? 'Open MPI (malloc-raised)' : 'Open MPI (plain)',
    ranks,
    processes: ({ host, port, token }) => [
      { file: 'mpirun', args: [...mpirunArguments(ranks, mpiClass), program, host, `${port}`, token] },
    ],
    env: { ...env, ...mpirunEnvironment(dirname(program)), ...settings },
    settings,
    install: INSTALL_OPEN_MPI,
  };
}

export interface GlooGroupOptions {
  readonly ranks: number;
  /** For the file that the ranks meet at. */
  readonly folder: string;
  readonly env: Environment;
  /** The Python that has torch. Default '/usr/bin/python3'. */
  readonly pythonPath?: string | undefined;
}

export function glooGroup(options: GlooGroupOptions): GroupCommand {
  const { ranks, folder, env, pythonPath = '/usr/bin/python3' } = options;
  const program = fileURLToPath(new URL('../../../src/bench/peers/gloo_peer.py', import.meta.url));
  const settings = { ...RAISED_MALLOC, OMP_NUM_THREADS: '1', GLOO_SOCKET_IFNAME: 'lo' };
  return {
    name: 'gloo',
    ranks,
    processes: ({ host, port, token }) =>
      Array.from({ length: ranks }, (_, rank) => ({
        file: pythonPath,
        // -E -s: the torch measured is the system's; -B: no files left beside the program.
        args: [
          ...['-E', '-s', '-B', program, host, `${port}`, token],
          ...[`${rank}`, `${ranks}`, join(folder, 'gloo-store')],
        ],
      })),
    env: { ...env, ...settings },
    settings,
    install: 'apt-get install python3-torch',
  };
}

/** What a rank program of ours is told, as JSON in its only argument. */
const Assignment = z.object({
  control: z.object({ host: z.string(), port: z.number().int(), token: z.string() }),
  transport: z.enum(['shm', 'tcp', 'mpi']),
  ranks: z.number().int().positive(),
  /** Null under mpirun, where MPI tells. */
  rank: z.number().int().nonnegative().nullable(),
  /** A folder of this run alone, in which ranks may meet; removed afterwards. */
  folder: z.string(),
});
export type RankAssignment = z.infer<typeof Assignment>;

/** For rank programs: throws where the argument is none. */
export function parseAssignment(argument: string | undefined): RankAssignment {
  try {
    return Assignment.parse(JSON.parse(argument ?? ''));
  } catch (cause) {
    throw new UsageError(
      'INVALID_ARGUMENT',
      `the rank program got '${argument?.slice(0, 200)}', not what the coordinator gives; start it by 'tributary bench allreduce'`,
      {},
      cause,
    );
  }
}

/** Each rank stays on a core, as those of mpirun do where there is one for each. */
function pinned(rank: number, args: readonly string[]): ProcessCommand {
  const core = rank % cpus().length;
  return { file: 'taskset', args: ['--cpu-list', `${core}`, process.execPath, ...args] };
}

export interface OurGroupOptions {
  readonly transport: BenchTransport;
  readonly ranks: number;
  /** For the ranks to meet in. */
  readonly folder: string;
  readonly env: Environment;
  /** For the MPI transport. */
  readonly mpiClass: MpiClass;
  /** The rank program. Default: the one of this package. */
  readonly rankProgram?: string | undefined;
}

export function ourGroup(options: OurGroupOptions): GroupCommand {
  const { transport, ranks, folder, env, mpiClass } = options;
  // From the sources (tests) the program is TypeScript and needs a loader; built, it is JavaScript beside this file.
  const fromSources = import.meta.url.endsWith('.ts');
  const ending = fromSources ? 'ts' : 'js';
  const program = options.rankProgram ?? fileURLToPath(new URL(`./rank.${ending}`, import.meta.url));
  const loader = fromSources ? ['--import', import.meta.resolve('tsx')] : [];
  const rankArguments = (control: ControlAddress, rank: number | null): string[] => {
    const assignment: RankAssignment = { control, transport, ranks, rank, folder };
    return [...loader, program, JSON.stringify(assignment)];
  };
  const underMpi = transport === 'mpi';
  const settings = underMpi ? RAISED_MALLOC : {};
  return {
    name: `Tributary (${transport})`,
    ranks,
    processes: (control) =>
      underMpi
        ? [
            {
              file: 'mpirun',
              args: [...mpirunArguments(ranks, mpiClass), process.execPath, ...rankArguments(control, null)],
            },
          ]
        : Array.from({ length: ranks }, (_, rank) => pinned(rank, rankArguments(control, rank))),
    env: underMpi ? { ...env, ...mpirunEnvironment(folder), ...settings } : env,
    settings,
    install: 'apt-get install openmpi-bin libopenmpi3',
  };
}
