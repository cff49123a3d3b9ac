/**
 * The ranks of one side of `bench allreduce`, as processes that wait for their turns: started, asked, ended. Not the
 * choice of what to measure, nor how a side is started at its best (group-command.ts). Invariants: a turn takes what its slowest rank
 * takes; after `close`, `abort`, a missed deadline or the end of this process no rank is left.
 */
import { spawn } from 'node:child_process';
import type { ChildProcess } from 'node:child_process';
import { once } from 'node:events';
import { PeerError, UsageError } from '../../base/index.ts';
import { ControlServer } from './control.ts';
import type { ControlAddress, RankLink, Turn, TurnResult } from './control.ts';

export interface ProcessCommand {
  readonly file: string;
  readonly args: readonly string[];
}

/** How the ranks of a side are started. */
export interface GroupCommand {
  /** Names the side in messages. */
  readonly name: string;
  readonly ranks: number;
  /** One process for each rank, or one that starts them all. */
  readonly processes: (address: ControlAddress) => readonly ProcessCommand[];
  readonly env: Readonly<Record<string, string | undefined>>;
  /** What was added to the caller's environment; part of the bench's output. */
  readonly settings: Readonly<Record<string, string>>;
  /** What the user installs if it cannot be started; ends an error message. */
  readonly install: string;
}

export interface PeerGroupOptions {
  /** Longest wait until all ranks are there, in milliseconds. Default 60,000. */
  readonly startTimeoutMs?: number | undefined;
  /** Longest wait for a turn, in milliseconds. Default 120,000. */
  readonly turnTimeoutMs?: number | undefined;
  /** Longest wait of `close` for the ranks to end, in milliseconds; then they are killed. Default 5,000. */
  readonly closeTimeoutMs?: number | undefined;
  /** Aborting it ends the ranks and fails what is under way. */
  readonly signal?: AbortSignal | undefined;
}

const KEPT_ERROR_TEXT = 2000;
const STUBBORN_MS = 2000;

export class PeerGroup {
  readonly command: GroupCommand;
  readonly #turnTimeoutMs: number;
  readonly #closeTimeoutMs: number;
  readonly #server: ControlServer;
  readonly #children: ChildProcess[] = [];
  readonly #exited: Promise<unknown>[] = [];
  readonly #cleanUp: (() => void)[] = [];
  #errorText = '';
  #ended: Error | undefined;
  #onEnded: ((error: Error) => void) | undefined;

  private constructor(command: GroupCommand, options: PeerGroupOptions, server: ControlServer) {
    this.command = command;
    this.#turnTimeoutMs = options.turnTimeoutMs ?? 120_000;
    this.#closeTimeoutMs = options.closeTimeoutMs ?? 5_000;
    this.#server = server;
    const { signal } = options;
    const stop = (): void =>
      this.abort(new PeerError('CANCELLED', `${command.name} was stopped by its caller's signal`));
    const kill = (): void => this.#kill();
    signal?.addEventListener('abort', stop, { once: true });
    process.once('exit', kill);
    this.#cleanUp.push(
      () => signal?.removeEventListener('abort', stop),
      () => process.off('exit', kill),
    );
    for (const { file, args } of command.processes(server.address)) this.#spawn(file, args);
    if (signal?.aborted) stop();
  }

  /** Returns when all ranks have come. */
  static async start(command: GroupCommand, options: PeerGroupOptions = {}): Promise<PeerGroup> {
    const group = new PeerGroup(command, options, await ControlServer.listen());
    const timeoutMs = options.startTimeoutMs ?? 60_000;
    try {
      await group.#within(timeoutMs, 'to start', () => group.#allHere());
      return group;
    } catch (error) {
      await group.#finish();
      throw error;
    }
  }

  /** As it would be typed, without the coordinator's address; part of the bench's output. */
  get commandLine(): string {
    const [first] = this.command.processes({ host: 'HOST', port: 0, token: 'TOKEN' });
    return first ? [first.file, ...first.args].join(' ') : '';
  }

  async turn(turn: Turn): Promise<TurnResult> {
    const what = `${turn.iterations} operations of ${turn.bytes} bytes (${turn.algorithm})`;
    const results = await this.#within(this.#turnTimeoutMs, `to do ${what}`, () =>
      Promise.all(this.#links().map((link) => link.turn(turn))),
    );
    return {
      micros: Math.max(...results.map(({ micros }) => micros)),
      ok: results.every(({ ok }) => ok),
      algorithm: results[0]?.algorithm,
    };
  }

  /** Asks the ranks to end, and kills those that do not. */
  async close(): Promise<void> {
    this.#ended ??= new PeerError('PEER_EXITED', `${this.command.name} was closed; start another group`);
    for (const link of this.#links()) link.quit();
    const timer = setTimeout(() => this.#kill(), this.#closeTimeoutMs);
    await Promise.all(this.#exited);
    clearTimeout(timer);
    await this.#finish();
  }

  /** Ends the ranks at once; what is under way fails with the error. */
  abort(error: Error): void {
    this.#end(error);
    this.#kill();
  }

  #spawn(file: string, args: readonly string[]): void {
    const child = spawn(file, args, { env: this.command.env, stdio: ['ignore', 'ignore', 'pipe'] });
    this.#children.push(child);
    child.stderr.setEncoding('utf8').on('data', (text: string) => {
      this.#errorText = (this.#errorText + text).slice(-KEPT_ERROR_TEXT);
    });
    child.once('error', (cause) => this.#end(this.#missing(`${file} cannot be started`, cause)));
    child.once('close', (code, signal) => {
      const missing = /^missing: (.*)$/m.exec(this.#errorText);
      if (missing) this.#end(this.#missing(missing[1]!));
      else this.#end(this.#failure(`ended (${signal ?? `exit code ${code}`}) before its work was done`));
    });
    // 'close' also follows 'error', where there was no process.
    this.#exited.push(once(child, 'close').catch(() => undefined));
  }

  #links(): readonly RankLink[] {
    return this.#server.links();
  }

  #allHere(): Promise<void> {
    return new Promise((resolve) => {
      const look = (): void => {
        if (this.#server.count >= this.command.ranks) resolve();
      };
      this.#server.onRank(look);
      look();
    });
  }

  /** The result of `action`, unless the group ends or the time is up before. */
  async #within<T>(timeoutMs: number, what: string, action: () => Promise<T>): Promise<T> {
    if (this.#ended) throw this.#ended;
    let timer: NodeJS.Timeout | undefined;
    const ended = new Promise<never>((_, reject) => {
      this.#onEnded = reject;
      timer = setTimeout(() => this.abort(this.#late(what, timeoutMs)), timeoutMs);
    });
    const work = action();
    // Whichever comes second has nobody to tell.
    work.catch(() => undefined);
    try {
      return await Promise.race([ended, work]);
    } finally {
      clearTimeout(timer);
      this.#onEnded = undefined;
    }
  }

  #end(error: Error): void {
    this.#ended ??= error;
    this.#onEnded?.(this.#ended);
  }

  /** By process id, and only while the connection shows that the id is still the rank's. */
  #kill(): void {
    for (const { connected, pid } of this.#links()) {
      if (!connected) continue;
      try {
        process.kill(pid, 'SIGKILL');
      } catch {
        // It ended meanwhile.
      }
    }
    for (const child of this.#children) {
      // mpirun ends its ranks on SIGTERM; killed outright, it leaves them.
      child.kill('SIGTERM');
      const timer = setTimeout(() => child.kill('SIGKILL'), STUBBORN_MS);
      child.once('close', () => clearTimeout(timer));
    }
  }

  async #finish(): Promise<void> {
    if (this.#children.some(({ exitCode, signalCode }) => exitCode === null && signalCode === null))
      this.#kill();
    await Promise.all(this.#exited);
    this.#server.close();
    for (const action of this.#cleanUp.splice(0)) action();
  }

  #late(what: string, timeoutMs: number): PeerError {
    const { name, ranks } = this.command;
    return new PeerError(
      'TIMEOUT',
      `${name} did not manage ${what} within ${timeoutMs} ms (${this.#server.count} of ${ranks} ranks are connected) and was ended; run ${this.commandLine} by hand to see why`,
      { peer: name, timeoutMs, connected: this.#server.count, ranks },
    );
  }

  #missing(what: string, cause?: unknown): UsageError {
    const { name, install } = this.command;
    return new UsageError(
      'MISSING_COMPONENT',
      `${name} cannot be compared with: ${what}. To compare with it: ${install}`,
      { peer: name },
      cause,
    );
  }

  #failure(what: string): PeerError {
    const said = this.#errorText.trim();
    return new PeerError(
      'PEER_EXITED',
      `${this.command.name} ${what}${said === '' ? '' : `; it wrote: ${said}`}. Run ${this.commandLine} by hand to see why.`,
      { peer: this.command.name },
    );
  }
}
