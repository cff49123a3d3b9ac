/**
 * A run of learners whose watchdog is a process of its own, as a test sees it: what it says, the processes that there are, and
 * how to kill them. Not the program; see `watchdog-program.ts`. Invariants: every wait has a deadline; after `close` no
 * process that it told of is alive.
 */
import { spawn } from 'node:child_process';
import type { ChildProcess } from 'node:child_process';
import { once } from 'node:events';
import { createInterface } from 'node:readline';
import { setTimeout as pause } from 'node:timers/promises';
import { fileURLToPath } from 'node:url';
import type { TrainResult } from '../../src/learners/index.ts';
import { updateModeParts } from '../../src/learners/index.ts';
import type { FitEvent } from '../../src/runner/index.ts';
import { moduleOf, programOf } from '../support/test-program.ts';
import type { TaskOptions } from './train-task.ts';
import type { WatchdogOrder } from './watchdog-program.ts';
import { segmentFiles } from '../support/segment-files.ts';

type Result = Pick<
  TrainResult,
  'steps' | 'samples' | 'finished' | 'evaluation' | 'replacements' | 'restarts'
>;
export type WatchdogLine = FitEvent | ({ readonly type: 'result' } & Result);

const DEADLINE_MS = 60_000;
const LOOK_MS = 5;

export class WatchdogProcess {
  readonly lines: WatchdogLine[] = [];
  /** Its processes, by name: those that are not known to be dead. */
  readonly children = new Map<string, number>();
  readonly #all = new Set<number>();
  readonly #process: ChildProcess;
  readonly #ended: Promise<unknown>;

  /** With the options of the watchdog, which the script gives to `fit`. */
  constructor(options: Omit<TaskOptions, 'signal' | 'onEvent'>) {
    const program = fileURLToPath(new URL('./watchdog-program.ts', import.meta.url));
    const order = orderOf(options);
    this.#process = spawn(process.execPath, [...programOf(program), JSON.stringify(order)], {
      stdio: ['ignore', 'pipe', 'inherit'],
    });
    // After its output was read to the end.
    this.#ended = once(this.#process, 'close');
    createInterface(this.#process.stdout!).on('line', (text) => this.#hear(JSON.parse(text) as WatchdogLine));
  }

  get pid(): number {
    return this.#process.pid!;
  }

  get isAlive(): boolean {
    return this.#process.exitCode === null && this.#process.signalCode === null;
  }

  get step(): number {
    return this.said('progress').at(-1)?.step ?? 0;
  }

  get result(): Result | undefined {
    return this.said('result')[0];
  }

  said<T extends WatchdogLine['type']>(type: T): Extract<WatchdogLine, { readonly type: T }>[] {
    return this.lines.filter(
      (line): line is Extract<WatchdogLine, { readonly type: T }> => line.type === type,
    );
  }

  async until(what: string, isTrue: () => boolean): Promise<void> {
    const deadlineMs = performance.now() + DEADLINE_MS;
    while (!isTrue()) {
      if (performance.now() > deadlineMs) throw new Error(`not within ${DEADLINE_MS} ms: ${what}`);
      await pause(LOOK_MS);
    }
  }

  async ended(): Promise<void> {
    await this.until('the watchdog has ended', () => !this.isAlive);
    await this.#ended;
  }

  /** Its learners end by themselves, and as long as there is one they leave nothing in shared memory. */
  async kill(): Promise<void> {
    this.#process.kill('SIGKILL');
    await this.ended();
  }

  /** Processes of the run that are still there. */
  alive(): number[] {
    return [...this.#all].filter(isAlive);
  }

  segments(): string[] {
    return segmentFiles().filter((name) => name.includes(`learners-${this.pid}-`));
  }

  /** For the end of a test that may have failed. */
  async close(): Promise<void> {
    if (this.isAlive) await this.kill();
    for (const pid of this.alive()) killProcess(pid);
    await this.until('its processes have ended', () => this.alive().length === 0);
  }

  #hear(line: WatchdogLine): void {
    this.lines.push(line);
    if (line.type === 'started' || line.type === 'restarted') {
      this.children.clear();
      line.learners!.forEach((pid, number) => this.children.set(`learner ${number}`, pid));
      if (line.server !== undefined) this.children.set('server', line.server);
    }
    if (line.type === 'learner-lost') {
      const name = line.learner === undefined ? 'server' : `learner ${line.learner}`;
      if (line.replacement === undefined) this.children.delete(name);
      else this.children.set(name, line.replacement);
    }
    for (const pid of this.children.values()) this.#all.add(pid);
  }
}

function orderOf(options: Omit<TaskOptions, 'signal' | 'onEvent'>): WatchdogOrder {
  const { source, learners, mode = 'direct lock-free', ...rest } = options;
  const { maxReplacements, maxRestarts, stallMs, startMs, segmentDirectory, ...ofFit } = rest;
  const supervision = { maxReplacements, maxRestarts, stallMs, startMs, segmentDirectory };
  return {
    source: { ...source, module: moduleOf(source.module) },
    options: { ...ofFit, on: { learners, ...updateModeParts(mode), ...supervision } },
  };
}

/** One that is dead already, and not seen to yet, stays so. */
export function killProcess(pid: number, signal: NodeJS.Signals = 'SIGKILL'): void {
  try {
    process.kill(pid, signal);
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code !== 'ESRCH') throw error;
  }
}

function isAlive(pid: number): boolean {
  try {
    process.kill(pid, 0);
    return true;
  } catch {
    return false;
  }
}
