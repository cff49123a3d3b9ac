/**
 * Further processes that run the script of this one, each as a worker with a rank of its own; this process is rank 0. Starts
 * them, passes on what they write to the error output, and notices how they end. Knows nothing of training.
 * Invariants: no worker outlives this process; errors name the worker that ended, how it ended, and its last output.
 */
import { spawn } from 'node:child_process';
import type { ChildProcess } from 'node:child_process';
import { basename } from 'node:path';
import { createInterface } from 'node:readline';
import { PeerError } from '../base/index.ts';
import { WORKER_MARK } from './worker-assignment.ts';
import type { WorkerAssignment } from './worker-assignment.ts';

export interface WorkerCommand {
  /**
   * Before the command itself, for a worker elsewhere: `['ip', 'netns', 'exec', 'b']`, `['ssh', 'host-b']`. By `ssh` the command
   * runs in the folder of this process. Default none.
   */
  readonly prefix?: readonly string[] | undefined;
  readonly assignment: WorkerAssignment;
}

export interface WorkerProcessesOptions {
  /** Program and arguments. Default: those of this process. */
  readonly command?: readonly [program: string, ...rest: string[]] | undefined;
  /** Longest wait for workers to end by themselves, in milliseconds; then they are ended. Default 10,000. */
  readonly endMs?: number | undefined;
  /** Takes the lines that workers write to the error output. Default: to that of this process, with the rank before it. */
  readonly log?: ((rank: number, line: string) => void) | undefined;
}

interface Running {
  readonly rank: number;
  readonly child: ChildProcess;
  readonly lastLines: string[];
  readonly ended: Promise<void>;
}

interface Lost {
  readonly error: PeerError;
  /** By a signal. */
  readonly wasKilled: boolean;
}

const KEPT_LINES = 5;
/** When one worker is ended, others end because of it: so long they are waited for, to tell which was the first. */
const GATHER_MS = 100;
/** What Node prints below the message of an error. */
const IS_TRAILING = /^\s*(at .*|Node\.js v.*)?$/;

export class WorkerProcesses {
  readonly #running: readonly Running[];
  readonly #options: WorkerProcessesOptions;
  readonly #endAll = (): void => this.#running.forEach(({ child }) => endGroup(child));
  /** Settles if a worker ends while it is still needed. */
  readonly failed: Promise<PeerError>;
  #isClosing = false;

  constructor(workers: readonly WorkerCommand[], options: WorkerProcessesOptions = {}) {
    this.#options = options;
    const { command = thisCommand() } = options;
    let tell: (error: PeerError) => void;
    this.failed = new Promise((resolve) => (tell = resolve));
    const lost: Lost[] = [];
    const fail = (one: Lost): void => {
      lost.push(one);
      // One that was ended from outside has not ended because of another.
      const choose = () => tell((lost.find(({ wasKilled }) => wasKilled) ?? lost[0]!).error);
      if (lost.length === 1) setTimeout(choose, GATHER_MS);
    };
    this.#running = workers.map(({ prefix, assignment }) => {
      const [program, ...rest] = prefix ? commandElsewhere(prefix, command) : command;
      const child = spawn(program!, rest, {
        stdio: ['pipe', 'ignore', 'pipe'],
        env: { ...process.env, [WORKER_MARK]: '1' },
        // Ctrl-C in a terminal goes to the group of this process: it is for this process to say what it means for the others.
        detached: true,
      });
      const running = this.#follow(assignment, child, fail);
      child.stdin.on('error', () => undefined);
      child.stdin.write(`${JSON.stringify(assignment)}\n`);
      return running;
    });
    process.once('exit', this.#endAll);
  }

  /** Process ids, by rank from 1 on. */
  get pids(): readonly number[] {
    return this.#running.map(({ child }) => child.pid ?? -1);
  }

  /** When all have ended, by themselves or, after a while, not. */
  async close(): Promise<void> {
    this.#isClosing = true;
    const timer = setTimeout(() => {
      this.#endAll();
      // Somebody beyond its group may have it still.
      for (const { child } of this.#running) child.stderr!.destroy();
    }, this.#options.endMs ?? 10_000);
    for (const { child } of this.#running) child.stdin!.end();
    await Promise.all(this.#running.map(({ ended }) => ended));
    clearTimeout(timer);
    process.off('exit', this.#endAll);
  }

  #follow({ rank, host }: WorkerAssignment, child: ChildProcess, fail: (lost: Lost) => void): Running {
    const lastLines: string[] = [];
    const where = host === undefined ? '' : ` on ${host}`;
    const { log = (from: number, line: string) => process.stderr.write(`[worker ${from}] ${line}\n`) } =
      this.#options;
    createInterface(child.stderr!).on('line', (line) => {
      if (!IS_TRAILING.test(line)) lastLines.push(line.trim());
      if (lastLines.length > KEPT_LINES) lastLines.shift();
      log(rank, line);
    });
    const ended = new Promise<void>((resolve) => {
      const end = (how: string, wasKilled = false) => {
        if (!this.#isClosing) fail({ error: lostWorker(rank, child.pid, how + where, lastLines), wasKilled });
        resolve();
      };
      child.once('error', (error) => end(`could not be started: ${error.message}`));
      child.once('close', (code, signal) =>
        signal === null ? end(`ended with code ${code}`) : end(`was ended by ${signal}`, true),
      );
    });
    return { rank, child, lastLines, ended };
  }
}

function lostWorker(rank: number, pid: number | undefined, how: string, lines: readonly string[]): PeerError {
  if (pid === undefined) {
    return new PeerError('PEER_LOST', `worker ${rank} ${how}. Check the command that starts it.`, { rank });
  }
  const words = lines.length === 0 ? '' : `; it last wrote: ${lines.join(' | ')}`;
  return new PeerError(
    'PEER_LOST',
    `worker ${rank} (process ${pid}) ${how}${words}. Look at what ended it, then start again.`,
    { rank, pid },
  );
}

/** A prefix passes words on as they are; `ssh` makes one text of them, which a shell reads in the home folder of the user. */
function commandElsewhere(prefix: readonly string[], command: readonly string[]): readonly string[] {
  const marked = ['env', `${WORKER_MARK}=1`, ...command];
  if (basename(prefix[0]!) !== 'ssh') return [...prefix, ...marked];
  return [...prefix, `cd ${quoted(process.cwd())} && exec ${marked.map(quoted).join(' ')}`];
}

/** For a shell: one word, whatever is in it. */
function quoted(word: string): string {
  return `'${word.replaceAll("'", `'\\''`)}'`;
}

/** With whatever it has started; each worker has a process group of its own. */
function endGroup({ pid, stderr }: ChildProcess): void {
  // One that has ended itself may have left others behind, who hold its output.
  if (pid === undefined || stderr!.closed) return;
  try {
    process.kill(-pid, 'SIGKILL');
  } catch {
    // It has ended since.
  }
}

function thisCommand(): readonly [string, ...string[]] {
  return [process.execPath, ...process.execArgv, ...process.argv.slice(1)];
}
