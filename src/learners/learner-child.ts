/**
 * One learner or server process as its watchdog sees it: the script started again, what it says,
 * and how it ended. Decides nothing. Invariant: `ended` comes once, after the process is surely
 * gone, so that what it held can be taken from it.
 */
import { unpack } from '../base/index.ts';
import type { TributaryError } from '../base/index.ts';
import { ScriptProcess } from '../launcher/index.ts';
import type { ScriptCommand } from '../launcher/index.ts';
import { SERVER } from './board.ts';
import type { Identity } from './board.ts';
import type { LearnerAssignment, LearnerNews } from './learn.ts';

export interface LearnerEnd {
  readonly code: number | null;
  readonly signal: string | null;
  /** Why the system did not start it. */
  readonly cause?: Error | undefined;
  /** What it said before it ended by itself. */
  readonly error: TributaryError | undefined;
  /** Whether its script came to the call that it was started for. */
  readonly hasCome: boolean;
  /** What it wrote to the error output at the end, to follow a sentence. */
  readonly lastWords: string;
}

/** After its end, for what it said before. */
const LAST_WORDS_MS = 1000;

export class LearnerChild {
  readonly self: Identity;
  isReady = false;
  end: LearnerEnd | undefined;
  readonly ended: Promise<LearnerEnd>;
  readonly #script: ScriptProcess;
  #error: TributaryError | undefined;
  #hasCome = false;

  constructor(assignment: LearnerAssignment, command: ScriptCommand | undefined) {
    const { self } = assignment;
    this.self = self;
    const who = self.number === SERVER ? 'server' : `learner ${self.number}`;
    this.#script = new ScriptProcess({
      ...{ assignment: { learner: { ...assignment } }, command, hasChannel: true },
      log: (line) => void process.stderr.write(`[${who}] ${line}\n`),
    });
    const { child } = this.#script;
    child.on('message', (news: LearnerNews) => {
      if (news.kind === 'come') this.#hasCome = true;
      else if (news.kind === 'ready') this.isReady = true;
      else if (news.kind === 'failed') this.#error = unpack(news.error);
    });
    this.ended = new Promise((resolve) => {
      const end = (code: number | null, signal: string | null, cause?: Error) => {
        if (this.end) return;
        const { lastWords } = this.#script;
        this.end = { code, signal, error: this.#error, cause, hasCome: this.#hasCome, lastWords };
        resolve(this.end);
      };
      child.once('exit', (code, signal) => {
        // What it said last may still be on its way; what it held open may be held by others, too.
        setTimeout(() => end(code, signal), LAST_WORDS_MS).unref();
        child.once('close', () => end(code, signal));
      });
      child.on('error', (cause) => {
        if (this.pid === undefined) end(null, null, cause);
      });
    });
  }

  /** Undefined: it could not be started. */
  get pid(): number | undefined {
    return this.#script.pid;
  }

  kill(): void {
    this.#script.kill();
  }
}
