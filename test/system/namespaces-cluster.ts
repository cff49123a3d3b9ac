/**
 * Runs ranks on hosts made of network namespaces, by a scheduler or by mpirun, and gathers what they print. Not the ranks
 * themselves (namespaces-rank.ts). Invariant: no process outlives the call that started it.
 */
import { spawn } from 'node:child_process';
import type { ChildProcess, SpawnOptions } from 'node:child_process';
import { once } from 'node:events';
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { text } from 'node:stream/consumers';
import { fileURLToPath } from 'node:url';
import type { Host, Hosts } from '../../src/bench/hosts.ts';
import type { RankLine, RankPlan, RankTimes } from './namespaces-rank.ts';
import { programOf } from '../support/test-program.ts';
import { SECRET } from '../support/secrets.ts';

type RankError = Extract<RankLine, { error: unknown }>['error'];

/** What a run gave. */
export interface Outcome {
  /** The algorithms in the order in which they ran. */
  readonly results: readonly AlgorithmResult[];
  /** What 'auto' went by; empty if nothing was measured. */
  readonly costs: string;
  /** By rank, if the test numbered them; what it ended with. */
  readonly errors: readonly (RankError | undefined)[];
  readonly errorOutput: string;
}

export interface AlgorithmResult {
  readonly algorithm: string;
  readonly ranks: number;
  /** For each repetition, the time of the slowest rank. */
  readonly seconds: readonly number[];
  readonly wrong: number;
}

type Join = Omit<NonNullable<RankPlan['join']>, 'scheduler' | 'secret'>;

const RUN_TIMEOUT_MS = 55_000;
const RANK_PROGRAM = fileURLToPath(new URL('./namespaces-rank.ts', import.meta.url));
const SCHEDULER_PROGRAM = fileURLToPath(new URL('./namespaces-scheduler.ts', import.meta.url));

/** Rank r runs on `places[r]` and joins as `joins(r)` says. */
export async function runByScheduler(
  hub: Host,
  places: readonly Host[],
  plan: Omit<RankPlan, 'join'>,
  joins: (rank: number) => Join,
): Promise<Outcome> {
  const arguments_ = [hub.address, String(places.length), SECRET];
  const scheduler = start(hub, SCHEDULER_PROGRAM, arguments_, { stdio: ['pipe', 'pipe', 'inherit'] });
  try {
    const [address] = (await once(scheduler.stdout!, 'data')) as [Buffer];
    const ranks = places.map((place, wantedRank) => {
      const join = { scheduler: String(address).trim(), secret: SECRET, wantedRank, ...joins(wantedRank) };
      return gather(start(place, RANK_PROGRAM, [JSON.stringify({ ...plan, join } satisfies RankPlan)]));
    });
    return outcome(await Promise.all(ranks));
  } finally {
    scheduler.stdin!.end();
    if (scheduler.exitCode === null) await once(scheduler, 'exit');
  }
}

/** One rank on each host, started by mpirun on the first of them. */
export async function runByMpirun(
  { hosts, subnet, remoteShell }: Hosts,
  plan: Omit<RankPlan, 'join'>,
  settings: Readonly<Record<string, string>>,
): Promise<Outcome> {
  const folder = mkdtempSync(join(tmpdir(), 'namespaces-'));
  try {
    const agent = join(folder, 'remote-shell');
    writeFileSync(agent, remoteShell, { mode: 0o700 });
    const parameters = {
      plm_rsh_agent: agent,
      // Jobs that end early leave their folder behind.
      orte_tmpdir_base: folder,
      pml: 'ob1',
      btl: 'tcp,self',
      btl_tcp_if_include: subnet,
      oob_tcp_if_include: subnet,
      ...settings,
    };
    const command = hosts[0]!.command(
      'mpirun',
      ...['--host', hosts.map(({ name }) => `${name}:1`).join(','), '--bind-to', 'none'],
      ...Object.entries(parameters).flatMap(([name, value]) => ['--mca', name, value]),
      ...[process.execPath, ...programOf(RANK_PROGRAM), JSON.stringify(plan)],
    );
    const env = { ...process.env, OMPI_ALLOW_RUN_AS_ROOT: '1', OMPI_ALLOW_RUN_AS_ROOT_CONFIRM: '1' };
    return outcome([await gather(spawn(...command, { env, stdio: ['ignore', 'pipe', 'pipe'] }))]);
  } finally {
    rmSync(folder, { recursive: true, force: true });
  }
}

function start(
  host: Host,
  program: string,
  programArguments: readonly string[],
  options: SpawnOptions = { stdio: ['ignore', 'pipe', 'pipe'] },
): ChildProcess {
  return spawn(...host.command(process.execPath, ...programOf(program), ...programArguments), options);
}

interface Gathered {
  readonly lines: readonly RankLine[];
  readonly errorOutput: string;
}

async function gather(child: ChildProcess): Promise<Gathered> {
  // mpirun passes the signal on to its ranks; killed outright, it could not.
  const timer = setTimeout(() => child.kill('SIGTERM'), RUN_TIMEOUT_MS);
  const [output, errorOutput] = await Promise.all([
    text(child.stdout!),
    text(child.stderr!),
    once(child, 'close'),
  ]);
  clearTimeout(timer);
  const lines = output.split('\n').filter((line) => line.startsWith('{'));
  return { lines: lines.map((line) => JSON.parse(line) as RankLine), errorOutput };
}

function outcome(gathered: readonly Gathered[]): Outcome {
  const lines = gathered.flatMap((one) => one.lines);
  const times = lines.flatMap((line) => ('times' in line ? [line.times] : []));
  const algorithms = [...new Set(times.map(({ algorithm }) => algorithm))];
  return {
    results: algorithms.map((name) => slowest(times.filter(({ algorithm }) => algorithm === name))),
    costs: lines.flatMap((line) => ('costs' in line ? [line.costs] : [])).join('\n'),
    errors: gathered.map((one) => one.lines.flatMap((line) => ('error' in line ? [line.error] : []))[0]),
    errorOutput: gathered.map((one) => one.errorOutput).join(''),
  };
}

function slowest(ranks: readonly RankTimes[]): AlgorithmResult {
  return {
    algorithm: ranks[0]!.algorithm,
    ranks: ranks.length,
    seconds: ranks[0]!.seconds.map((_, i) => Math.max(...ranks.map(({ seconds }) => seconds[i]!))),
    wrong: ranks.reduce((sum, { wrong }) => sum + wrong, 0),
  };
}
