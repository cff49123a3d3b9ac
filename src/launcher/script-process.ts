/**
 * One process that runs the script of this one again, with an assignment on its standard input: a
 * worker or a learner. Starts it, passes on what it writes to the error output, and keeps its last
 * lines. Does not know what it is for. Invariant: it has a process group of its own, which `kill`
 * ends as a whole.
 */
import { spawn, type ChildProcess } from 'node:child_process';
import { basename } from 'node:path';
import { createInterface } from 'node:readline';
import { WORKER_MARK, type Assignment } from './assignment.ts';

/** Program and arguments. */
export type ScriptCommand = readonly [program: string, ...rest: string[]];

export interface ScriptProcessOptions {
  readonly assignment: Assignment;
  /** Default: those of this process. */
  readonly command?: ScriptCommand | undefined;
  /**
   * Before the command itself, for a process elsewhere: `['ip', 'netns', 'exec', 'b']`, `['ssh',
   * 'host-b']`. By `ssh` the command runs in the folder of this process. Default none.
   */
  readonly prefix?: readonly string[] | undefined;
  /** Whether it can send messages to this process; not with a prefix. Default false. */
  readonly hasChannel?: boolean | undefined;
  /** Receives lines of the error output. */
  readonly log: (line: string) => void;
}

const KEPT_LINES = 5;
/** What Node prints below the message of an error. */
const IS_TRAILING = /^\s*(at .*|Node\.js v.*)?$/;

export class ScriptProcess {
  readonly child: ChildProcess;
  readonly #lastLines: string[] = [];

  constructor({ assignment, command = thisCommand(), prefix, hasChannel, log }: ScriptProcessOptions) {
    const [program, ...rest] = prefix ? commandElsewhere(prefix, command) : command;
    this.child = spawn(program!, rest, {
      stdio: ['pipe', 'ignore', 'pipe', ...(hasChannel ? (['ipc'] as const) : [])],
      env: { ...process.env, [WORKER_MARK]: '1' },
      // Ctrl-C in a terminal goes to the group of this process: it is for this process to say what
      // it means for the others.
      detached: true,
    });
    createInterface(this.child.stderr!).on('line', (line) => {
      if (!IS_TRAILING.test(line)) this.#lastLines.push(line.trim());
      if (this.#lastLines.length > KEPT_LINES) this.#lastLines.shift();
      log(line);
    });
    this.child.stdin!.on('error', () => undefined);
    this.child.stdin!.write(`${JSON.stringify(assignment)}\n`);
  }

  /** Undefined: it could not be started. */
  get pid(): number | undefined {
    return this.child.pid;
  }

  /** What it wrote last, to follow a sentence; empty if that is nothing. */
  get lastWords(): string {
    return this.#lastLines.length === 0 ? '' : `; it last wrote: ${this.#lastLines.join(' | ')}`;
  }

  /** With whatever it has started. */
  kill(): void {
    const { pid, stderr } = this.child;
    // One that has ended itself may have left others behind, who hold its output.
    if (pid === undefined || stderr!.closed) return;
    try {
      process.kill(-pid, 'SIGKILL');
    } catch {
      // It has ended since.
    }
  }
}

/**
 * A prefix passes words on as they are; `ssh` makes one text of them, which a shell reads in the
 * home folder of the user.
 */
function commandElsewhere(prefix: readonly string[], command: readonly string[]): readonly string[] {
  const marked = ['env', `${WORKER_MARK}=1`, ...command];
  if (basename(prefix[0]!) !== 'ssh') return [...prefix, ...marked];
  return [...prefix, `cd ${quoted(process.cwd())} && exec ${marked.map(quoted).join(' ')}`];
}

/** For a shell: one word, whatever is in it. */
function quoted(word: string): string {
  return `'${word.replaceAll("'", `'\\''`)}'`;
}

function thisCommand(): ScriptCommand {
  return [process.execPath, ...process.execArgv, ...process.argv.slice(1)];
}
