/**
 * Ranks as processes of their own: a scheduler in this process, programs that join it, what they say (lines of JSON on
 * their output) and what they are told (lines on their input). The ranks' side is `collectives/rank-program-start.ts`;
 * ranks inside one process are in `run-group.ts`. Invariants: every wait has a deadline, a rank that fails ends every
 * wait with what it wrote on its error output, and after `close` no process is left.
 */
import { spawn } from 'node:child_process';
import type { ChildProcess } from 'node:child_process';
import { once } from 'node:events';
import { readdirSync, readFileSync } from 'node:fs';
import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { createInterface } from 'node:readline';
import { setTimeout as pause } from 'node:timers/promises';
import { Scheduler } from '../../src/cluster/index.ts';
import { defaultSegmentDirectory, removeStaleSegments } from '../../src/memory/index.ts';
import { decodeHeader } from '../../src/memory/segment-header.ts';
import { programOf } from './test-program.ts';
import { segmentFiles } from './segment-files.ts';
import { SECRET } from './secrets.ts';

/** What a rank says: its kind, when by `machineMs`, and what belongs to it. */
export interface RankLine {
  readonly what: string;
  readonly atMs: number;
  readonly [fact: string]: unknown;
}

export type RankTransport = 'shm' | 'tcp' | 'auto' | 'mpi';

/** What a rank program gets as its only argument, as JSON. */
export interface RankSettings {
  readonly transport: RankTransport;
  readonly size: number;
  readonly scheduler: string;
  readonly secret: string;
  readonly seed: number;
  readonly [option: string]: unknown;
}

export interface RankProcessesOptions {
  /** Path of the program's source. */
  readonly program: string;
  readonly transport: RankTransport;
  readonly size: number;
  /** How many are started at once; the others by `add`. Default all. */
  readonly processes?: number;
  /** Printed by tests, so that a failure can be repeated. Default 1. */
  readonly seed?: number;
  /** More settings for the program. Default none. */
  readonly options?: Readonly<Record<string, unknown>>;
}

const DEADLINE_MS = 50_000;
/** How much of the error output of a rank is kept. */
const MAX_ERROR_CHARACTERS = 20_000;

/** The seed of TRIBUTARY_SEED, to repeat a run, else a fresh one; say it in the output. */
export function chooseSeed(): number {
  const given = process.env['TRIBUTARY_SEED'];
  return given === undefined ? Math.floor(Math.random() * 2 ** 31) : Number(given);
}

/** One process: a rank, or the mpirun of several. */
export class RankProcess {
  readonly lines: RankLine[] = [];
  readonly #child: ChildProcess;
  #errors = '';
  #killed = false;
  /** It has ended, and all that it said was read. */
  #closed = false;

  constructor(child: ChildProcess, onNews: () => void) {
    this.#child = child;
    createInterface(child.stdout!).on('line', (text) => {
      // Libraries of mpirun print too.
      if (text.startsWith('{')) this.lines.push(JSON.parse(text) as RankLine);
      onNews();
    });
    child.stderr!.setEncoding('utf8').on('data', (text: string) => {
      this.#errors = (this.#errors + text).slice(-MAX_ERROR_CHARACTERS);
    });
    // A program that has ended does not read.
    child.stdin!.on('error', () => undefined);
    child.once('close', () => {
      this.#closed = true;
      onNews();
    });
    child.once('error', (error) => {
      this.#errors += error.message;
      onNews();
    });
  }

  get pid(): number {
    return this.#child.pid ?? 0;
  }

  get killed(): boolean {
    return this.#killed;
  }

  get ended(): boolean {
    return this.#child.pid === undefined || this.#closed;
  }

  /** Whether it ended in a way that nobody asked for. */
  get failed(): boolean {
    return this.ended && !this.#killed && this.#child.exitCode !== 0;
  }

  get errors(): string {
    return this.#errors.trim();
  }

  /** A line for the program's input. */
  tell(text: string): void {
    this.#child.stdin!.write(`${text}\n`);
  }

  said(what: string): RankLine[] {
    return this.lines.filter((line) => line.what === what);
  }

  /** Whoever stops it may rely on that: a thread on another processor takes a moment to stop. */
  signal(signal: 'SIGSTOP' | 'SIGCONT'): void {
    process.kill(this.pid, signal);
    while (signal === 'SIGSTOP' && !hasStopped(this.pid));
  }

  /** Returns when the signal was sent, on the clock that all processes of the machine share. */
  kill(signal: 'SIGKILL' | 'SIGTERM' = 'SIGKILL'): number {
    this.#killed = true;
    const atMs = machineMs();
    this.#child.kill(signal);
    return atMs;
  }

  async end(): Promise<void> {
    if (!this.ended) await once(this.#child, 'exit');
  }
}

export class RankProcesses {
  /** Every process that was ever started, oldest first. */
  readonly processes: RankProcess[] = [];
  readonly settings: RankSettings;
  readonly #program: string;
  /** Undefined for MPI. */
  readonly scheduler: Scheduler | undefined;
  readonly #folder: string;
  #news: () => void = () => undefined;

  /** Starts the ranks; for 'mpi' one mpirun, whose lines are those of all ranks. */
  static async start(options: RankProcessesOptions): Promise<RankProcesses> {
    const { transport, size, processes = size } = options;
    const scheduler = transport === 'mpi' ? undefined : await Scheduler.start({ size, secret: SECRET });
    const folder = await mkdtemp(join(tmpdir(), 'ranks-'));
    const ranks = new RankProcesses(options, scheduler, folder);
    for (let count = 0; count < (scheduler ? processes : 1); count++) ranks.add();
    return ranks;
  }

  private constructor(options: RankProcessesOptions, scheduler: Scheduler | undefined, folder: string) {
    const { program, transport, size, seed = 1 } = options;
    this.#program = program;
    this.scheduler = scheduler;
    this.#folder = folder;
    const address = scheduler?.address ?? '';
    this.settings = { transport, size, seed, scheduler: address, secret: SECRET, ...options.options };
  }

  /** Starts one process more: with a scheduler, a newcomer. */
  add(options: Readonly<Record<string, unknown>> = {}): RankProcess {
    const settings = JSON.stringify({ ...this.settings, ...options });
    const node = [process.execPath, ...programOf(this.#program), settings];
    const mpirun = ['mpirun', '--oversubscribe', '--bind-to', 'none', '-n', `${this.settings.size}`];
    const [file, ...args] = this.scheduler ? node : [...mpirun, ...node];
    const child = spawn(file!, args, {
      stdio: ['pipe', 'pipe', 'pipe'],
      env: {
        ...process.env,
        OMPI_ALLOW_RUN_AS_ROOT: '1',
        OMPI_ALLOW_RUN_AS_ROOT_CONFIRM: '1',
        // Jobs that end early leave their folder behind.
        OMPI_MCA_orte_tmpdir_base: this.#folder,
      },
    });
    const added = new RankProcess(child, () => this.#news());
    this.processes.push(added);
    return added;
  }

  /** All that was said of this kind, process by process. */
  said(what: string): RankLine[] {
    return this.processes.flatMap((one) => one.said(what));
  }

  /** Waits until `find` gives something, looking again at every line; ends early if a process fails. */
  async until<T>(what: string, find: () => T | undefined | false, deadlineMs = DEADLINE_MS): Promise<T> {
    const deadline = performance.now() + deadlineMs;
    for (;;) {
      const news = new Promise<void>((resolve) => (this.#news = resolve));
      const found = find();
      if (found !== undefined && found !== false) return found;
      const failed = this.processes.find((one) => one.failed);
      if (failed) throw new Error(`a rank failed before ${what}:\n${describe(failed)}`);
      const leftMs = deadline - performance.now();
      if (leftMs <= 0) {
        const all = this.processes.filter((one) => !one.killed).map(describe);
        throw new Error(`after ${deadlineMs} ms there was still not: ${what}\n${all.join('\n')}`);
      }
      const timer = new AbortController();
      await Promise.race([news, pause(leftMs, undefined, { signal: timer.signal }).catch(() => undefined)]);
      timer.abort();
    }
  }

  /** Waits until every process that was not killed has ended with 0. */
  async untilEnded(deadlineMs?: number): Promise<void> {
    await this.until('every rank has ended', () => this.processes.every((one) => one.ended), deadlineMs);
  }

  /** Names of the segments in shared memory that processes of this test own or have left behind. */
  segments(of: readonly RankProcess[] = this.processes): string[] {
    const pids = new Set(of.map(({ pid }) => pid));
    return segmentFiles().filter((name) => {
      const owner = name.includes('tributary-') ? ownerOf(join(defaultSegmentDirectory(), name)) : undefined;
      return owner !== undefined && pids.has(owner);
    });
  }

  async close(): Promise<void> {
    for (const one of this.processes) {
      // mpirun passes the signal on to its ranks; killed outright, it could not.
      if (!one.ended) one.kill(this.scheduler ? 'SIGKILL' : 'SIGTERM');
    }
    await Promise.all(this.processes.map((one) => one.end()));
    await this.scheduler?.close();
    await rm(this.#folder, { recursive: true, force: true });
    // What killed ranks leave in shared memory goes with the next segment made on the machine; here, at once.
    removeStaleSegments();
  }
}

/** Milliseconds on the machine's monotonic clock, which is the same in all processes. */
export function machineMs(): number {
  return Number(process.hrtime.bigint()) / 1e6;
}

function ownerOf(path: string): number | undefined {
  try {
    const content = readFileSync(path);
    const header = decodeHeader(content, content.length);
    return typeof header === 'string' ? undefined : header.owner.pid;
  } catch {
    // Others come and go while the folder is read.
    return undefined;
  }
}

function describe(one: RankProcess): string {
  const last = one.lines.slice(-3).map((line) => JSON.stringify(line).slice(0, 400));
  return [`process ${one.pid}${one.ended ? ' (ended)' : ''} said last:`, ...last, one.errors].join('\n  ');
}

function hasStopped(pid: number): boolean {
  return readdirSync(`/proc/${pid}/task`).every((thread) => {
    try {
      const line = readFileSync(`/proc/${pid}/task/${thread}/stat`, 'utf8');
      // The name before the state may have spaces in it. A thread that has ended does nothing either.
      return /^\d+ \(.*\) [TtZX]/s.test(line);
    } catch {
      return true;
    }
  });
}
