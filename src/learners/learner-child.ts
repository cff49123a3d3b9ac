/**
 * One learner or server process as its watchdog sees it: starts it, hears what it says, and knows how it ended. Decides nothing.
 * Invariant: `ended` comes once, after the process is surely gone, so that what it held can be taken from it.
 */
import { fork } from 'node:child_process';
import type { ChildProcess } from 'node:child_process';
import { fileURLToPath } from 'node:url';
import { unpack } from '../base/index.ts';
import type { TributaryError } from '../base/index.ts';
import type { Identity } from './board.ts';
import type { LearnerAssignment, LearnerNews } from './learner-process.ts';

export interface LearnerEnd {
  readonly code: number | null;
  readonly signal: string | null;
  /** Why the system did not start it. */
  readonly cause?: Error | undefined;
  /** What it said before it ended by itself. */
  readonly error: TributaryError | undefined;
}

export class LearnerChild {
  readonly self: Identity;
  /** Undefined: it could not be started. */
  readonly pid: number | undefined;
  isReady = false;
  end: LearnerEnd | undefined;
  readonly ended: Promise<LearnerEnd>;
  readonly #process: ChildProcess;
  #error: TributaryError | undefined;

  constructor(assignment: LearnerAssignment) {
    this.self = assignment.self;
    // From the sources (tests) the program is TypeScript and needs a loader; built, it is JavaScript beside this file.
    const fromSources = import.meta.url.endsWith('.ts');
    const program = fileURLToPath(new URL(`./learner-process.${fromSources ? 'ts' : 'js'}`, import.meta.url));
    this.#process = fork(program, [JSON.stringify(assignment)], {
      execArgv: fromSources ? ['--import', import.meta.resolve('tsx')] : [],
      // What it prints is for people who look for a fault.
      stdio: ['ignore', 'ignore', 'inherit', 'ipc'],
    });
    this.pid = this.#process.pid;
    this.#process.on('message', (news: LearnerNews) => {
      if (news.kind === 'ready') this.isReady = true;
      else this.#error = unpack(news.error);
    });
    this.ended = new Promise((resolve) => {
      const end = (code: number | null, signal: string | null, cause?: Error) => {
        if (this.end) return;
        this.end = { code, signal, error: this.#error, cause };
        resolve(this.end);
      };
      this.#process.once('exit', (code, signal) => end(code, signal));
      this.#process.on('error', (cause) => {
        if (this.pid === undefined) end(null, null, cause);
      });
    });
  }

  kill(): void {
    this.#process.kill('SIGKILL');
  }
}
