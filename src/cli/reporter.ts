/**
 * How a training run is shown: as a line of progress on a terminal, as plain lines in a pipe, or as one JSON object a
 * line. Reporters only consume events. Invariant: after `close` the cursor is visible and no half line is left.
 */
import type { FitEvent } from '../runner/index.ts';
import { duration, lossText, percent, thousands } from './format.ts';
import { bold, type CommandIo, type TextSink } from './io.ts';
import { renderFrame } from './progress-bar.ts';

export interface Reporter {
  event(event: FitEvent): void;
  /** A line for people; not part of the JSON form. */
  say(text: string): void;
  /** An object of the JSON form; nothing for people. */
  record(object: Readonly<Record<string, unknown>>): void;
  close(): void;
}

export interface ReporterOptions {
  readonly json: boolean;
  readonly epochs: number;
  /** Milliseconds of a clock that only moves forward. Default `performance.now`. */
  readonly now?: () => number;
}

export function createReporter(io: CommandIo, options: ReporterOptions): Reporter {
  if (options.json) return new JsonReporter(io, options);
  return io.terminal ? new TerminalReporter(io, io.terminal, options) : new PlainReporter(io, options);
}

/** True at most once an interval; the first time at once if `eager`. */
class Rhythm {
  readonly #intervalMs: number;
  readonly #now: () => number;
  #last: number;

  constructor(intervalMs: number, now: () => number, eager: boolean) {
    this.#intervalMs = intervalMs;
    this.#now = now;
    this.#last = eager ? -Infinity : now();
  }

  due(): boolean {
    if (this.#now() - this.#last < this.#intervalMs) return false;
    this.#last = this.#now();
    return true;
  }
}

class JsonReporter implements Reporter {
  readonly #out: TextSink;
  readonly #rhythm: Rhythm;

  constructor(io: CommandIo, { now = () => performance.now() }: ReporterOptions) {
    this.#out = io.stdout;
    this.#rhythm = new Rhythm(1000, now, true);
  }

  event(event: FitEvent): void {
    if (event.type === 'progress' && !this.#rhythm.due()) return;
    // Epochs count from 1 wherever people or scripts see them.
    this.record('epoch' in event ? { ...event, epoch: event.epoch + 1 } : event);
  }

  say(): void {}

  record(object: Readonly<Record<string, unknown>>): void {
    this.#out.write(`${JSON.stringify(object)}\n`);
  }

  close(): void {}
}

/** What both forms for people share: lines about everything but progress. */
abstract class LineReporter implements Reporter {
  protected readonly io: CommandIo;
  protected readonly epochs: number;
  protected readonly now: () => number;
  #epochStart: number;

  constructor(io: CommandIo, { epochs, now = () => performance.now() }: ReporterOptions) {
    this.io = io;
    this.epochs = epochs;
    this.now = now;
    this.#epochStart = now();
  }

  event(event: FitEvent): void {
    switch (event.type) {
      case 'started': {
        this.#epochStart = this.now();
        const left = event.totalSteps - event.step;
        // Of a run that is longer than it is to be, a note has said so already.
        const next =
          left < 0
            ? ''
            : `: the run ends at step ${thousands(event.totalSteps)}. To go on, give more by --epochs, or by --max-steps where that is the limit`;
        const steps = left > 0 ? `${thousands(left)} steps` : `no step left${next}`;
        this.say(`${thousands(event.parameters)} parameters, ${steps}`);
        return;
      }
      case 'resumed':
        this.say(`Resumed from ${event.path} at step ${event.step}.`);
        return;
      case 'checkpoint-skipped':
        this.say(`Skipped the checkpoint ${event.path}: ${event.reason}`);
        return;
      case 'checkpoint-not-removed':
        this.say(`${event.path} is not needed any more and could not be removed: ${event.reason}`);
        return;
      case 'progress':
        this.progress(event);
        return;
      case 'epoch': {
        const tested = event.evaluation;
        const time = this.now() - this.#epochStart;
        this.#epochStart = this.now();
        const parts = [
          bold(
            this.io,
            `epoch ${String(event.epoch + 1).padStart(String(this.epochs).length)}/${this.epochs}`,
          ),
          `loss ${lossText(event.loss)}`,
          ...(tested ? [`test loss ${lossText(tested.loss)}`] : []),
          ...(tested?.accuracy === undefined ? [] : [`accuracy ${percent(tested.accuracy)}`]),
          duration(time),
        ];
        this.say(parts.join('  '));
        return;
      }
      case 'learner-lost': {
        const next =
          event.replacement === undefined
            ? 'the others go on without it'
            : `process ${event.replacement} takes its place`;
        const who = event.learner === undefined ? 'The server' : `Learner ${event.learner}`;
        const process = event.pid === undefined ? '' : ` (process ${event.pid})`;
        this.say(`${who}${process} ${event.how}; ${next}.`);
        return;
      }
      case 'restarted': {
        const from = event.checkpoint ?? 'the first weights';
        this.say(`Started again from ${from} at step ${event.step}: ${event.why}.`);
        return;
      }
      case 'checkpoint':
      case 'stopped':
        return;
    }
  }

  abstract say(text: string): void;
  protected abstract progress(event: Extract<FitEvent, { type: 'progress' }>): void;

  record(): void {}

  close(): void {}
}

class PlainReporter extends LineReporter {
  readonly #rhythm: Rhythm;

  constructor(io: CommandIo, options: ReporterOptions) {
    super(io, options);
    this.#rhythm = new Rhythm(10_000, this.now, false);
  }

  say(text: string): void {
    this.io.stdout.write(`${text}\n`);
  }

  protected progress(event: Extract<FitEvent, { type: 'progress' }>): void {
    // While learners start there is nothing to tell.
    if (Number.isNaN(event.remainingMs) || !this.#rhythm.due()) return;
    const share = Math.floor((100 * event.step) / event.totalSteps);
    this.say(
      `${share}%  epoch ${event.epoch + 1}/${this.epochs}  step ${event.step}  loss ${lossText(event.loss)}  ` +
        `${thousands(event.samplesPerSec)} samples/s  ${duration(event.remainingMs)} left`,
    );
  }
}

const HIDE_CURSOR = '\x1b[?25l';
export const SHOW_CURSOR = '\x1b[?25h';
const CLEAR_LINE = '\r\x1b[2K';

class TerminalReporter extends LineReporter {
  readonly #terminal: TextSink;
  readonly #rhythm: Rhythm;
  #drawn = false;

  constructor(io: CommandIo, terminal: TextSink, options: ReporterOptions) {
    super(io, options);
    this.#terminal = terminal;
    this.#rhythm = new Rhythm(100, this.now, true);
  }

  say(text: string): void {
    this.close();
    this.io.stdout.write(`${text}\n`);
  }

  protected progress(event: Extract<FitEvent, { type: 'progress' }>): void {
    if (!this.#rhythm.due()) return;
    const frame = renderFrame({ ...event, epoch: event.epoch + 1, epochs: this.epochs }, this.io.columns);
    this.#terminal.write(`${this.#drawn ? '' : HIDE_CURSOR}${CLEAR_LINE}${frame}`);
    this.#drawn = true;
  }

  override close(): void {
    if (!this.#drawn) return;
    this.#terminal.write(`${CLEAR_LINE}${SHOW_CURSOR}`);
    this.#drawn = false;
  }
}
