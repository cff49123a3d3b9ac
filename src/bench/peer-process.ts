/**
 * The conversation with a peer of `tributary bench compute`: one request line, one answer line, each with a deadline. Not the
 * choice of what to measure. Invariant: at most one request is under way; after `close`, `abort`, a missed deadline or
 * the end of this process the child is gone. Its answers are checked before use: it is another program.
 */
import { spawn, type ChildProcessWithoutNullStreams } from 'node:child_process';
import { createInterface } from 'node:readline';
import { z } from 'zod';
import { PeerError, UsageError } from '../base/index.ts';
import type { PeerCommand } from './peer-command.ts';

export interface PeerProcessOptions {
  /** Longest wait for the peer to start and introduce itself; default 60,000. */
  readonly startTimeoutMs?: number;
  /** Longest wait for any other answer; default 120,000. A timed run must be shorter. */
  readonly answerTimeoutMs?: number;
  /** Aborting it kills the peer and fails the request under way. */
  readonly signal?: AbortSignal;
}

export interface PeerLoad {
  /** mlp, textcnn, cnn, lstm-lm, transformer or resnet. */
  readonly model: string;
  /** Samples in a batch. */
  readonly batch: number;
  /** Flags joined by '+', of `variants(model)`; default: the plain model. */
  readonly variant?: string;
  /** Manifest written by `writePeerTensors`; default: drawn from the seed. */
  readonly tensors?: string;
  /** Seed of what `tensors` does not give; default 1. */
  readonly seed?: number;
}

const Shape = z.array(z.number().int().nonnegative());
const Failure = z.object({ ok: z.literal(false), error: z.string(), missing: z.string().optional() });
const Info = z.object({
  peer: z.string(),
  version: z.string(),
  threads: z.number(),
  models: z.array(z.string()),
  /** Kernels OpenBLAS chose (PyTorch only). */
  blasCore: z.string().optional(),
  /** Vector instructions of the elementwise kernels (PyTorch only). */
  cpuCapability: z.string().optional(),
});
const Loaded = z.object({
  params: z.array(z.object({ name: z.string(), shape: Shape })),
  inputs: z.array(z.object({ name: z.string(), dtype: z.enum(['float32', 'int32']), shape: Shape })),
});
const Variants = z.object({ variants: z.array(z.string()) });
const Step = z.object({ loss: z.number() });
const Timed = z.object({ seconds: z.number().positive(), loss: z.number() });

export type PeerInfo = z.infer<typeof Info>;
export type PeerLoaded = z.infer<typeof Loaded>;
export type PeerTimed = z.infer<typeof Timed>;

interface Waiter {
  resolve(line: string): void;
  reject(error: Error): void;
}

export class PeerProcess {
  readonly command: PeerCommand;
  readonly #child: ChildProcessWithoutNullStreams;
  readonly #options: Required<Omit<PeerProcessOptions, 'signal'>> & {
    readonly signal: AbortSignal | undefined;
  };
  readonly #exited: Promise<void>;
  #waiter: Waiter | undefined;
  #ended: Error | undefined;
  #errorText = '';
  #info: PeerInfo | undefined;

  private constructor(command: PeerCommand, options: PeerProcessOptions) {
    this.command = command;
    this.#options = {
      startTimeoutMs: options.startTimeoutMs ?? 60_000,
      answerTimeoutMs: options.answerTimeoutMs ?? 120_000,
      signal: options.signal,
    };
    this.#child = spawn(command.file, command.args, { env: command.env, stdio: 'pipe' });
    const kill = (): void => void this.#child.kill('SIGKILL');
    const stop = (): void =>
      this.abort(new PeerError('PEER_EXITED', `${command.name} was stopped by its caller's signal.`));
    process.once('exit', kill);
    options.signal?.addEventListener('abort', stop, { once: true });
    this.#exited = new Promise((resolve) => {
      this.#child.once('error', (cause) => {
        this.#end(this.#missing(`${command.file} cannot be started`, cause));
        resolve();
      });
      this.#child.once('close', (code, signal) => {
        process.off('exit', kill);
        options.signal?.removeEventListener('abort', stop);
        this.#end(this.#failure(`ended (${signal ?? `exit code ${code}`}) before it answered`));
        resolve();
      });
    });
    // Writing to a peer that is gone fails here; the close event says so with more facts.
    this.#child.stdin.on('error', () => undefined);
    this.#child.stderr.setEncoding('utf8').on('data', (text: string) => {
      this.#errorText = (this.#errorText + text).slice(-2000);
    });
    createInterface({ input: this.#child.stdout }).on('line', (line) => {
      const waiter = this.#waiter;
      this.#waiter = undefined;
      waiter?.resolve(line);
    });
    if (options.signal?.aborted) stop();
  }

  /** Starts the peer and waits until it has introduced itself. */
  static async start(command: PeerCommand, options: PeerProcessOptions = {}): Promise<PeerProcess> {
    const peer = new PeerProcess(command, options);
    try {
      const info = await peer.#ask(Info, { cmd: 'info' }, peer.#options.startTimeoutMs);
      // Reference BLAS is 20x slower: a ratio against it would mean nothing.
      if (info.blasCore === 'no OpenBLAS') throw peer.#missing('torch runs without OpenBLAS');
      peer.#info = info;
      return peer;
    } catch (error) {
      peer.abort(error as Error);
      await peer.#exited;
      throw error;
    }
  }

  get info(): PeerInfo {
    return this.#info!;
  }

  /** Variants of a model worth racing, the usual winner first. */
  async variants(model: string): Promise<readonly string[]> {
    return (await this.#ask(Variants, { cmd: 'variants', model })).variants;
  }

  load(request: PeerLoad): Promise<PeerLoaded> {
    return this.#ask(Loaded, { cmd: 'load', ...request });
  }

  /** One training step; the loss before its update. */
  async step(): Promise<number> {
    return (await this.#ask(Step, { cmd: 'step' })).loss;
  }

  /** Seconds of so many full training steps on the loaded batch, and the loss of the last. */
  time(steps: number): Promise<PeerTimed> {
    return this.#ask(Timed, { cmd: 'time', steps });
  }

  /** Asks the peer to end, and kills it if it has not within `timeoutMs` (default 2,000). */
  async close(timeoutMs = 2000): Promise<void> {
    this.#child.stdin.end('{"cmd":"close"}\n');
    const timer = setTimeout(() => this.#child.kill('SIGKILL'), timeoutMs);
    await this.#exited;
    clearTimeout(timer);
  }

  /** Kills the peer; the request under way fails with `error`. */
  abort(error: Error): void {
    this.#end(error);
    this.#child.kill('SIGKILL');
  }

  async #ask<T>(
    schema: z.ZodType<T>,
    request: object,
    timeoutMs = this.#options.answerTimeoutMs,
  ): Promise<T> {
    if (this.#ended) throw this.#ended;
    if (this.#waiter) throw this.#failure('was asked again before it answered; await each request');
    const line = await new Promise<string>((resolve, reject) => {
      const timer = setTimeout(() => this.abort(this.#late(request, timeoutMs)), timeoutMs);
      const settled =
        <V>(then: (value: V) => void) =>
        (value: V) => {
          clearTimeout(timer);
          then(value);
        };
      this.#waiter = { resolve: settled(resolve), reject: settled(reject) };
      this.#child.stdin.write(`${JSON.stringify(request)}\n`);
    });
    const answer = parse(line);
    const failure = Failure.safeParse(answer);
    if (failure.success && failure.data.missing !== undefined)
      throw this.#missing(`${failure.data.missing} is not installed (${failure.data.error})`);
    if (failure.success)
      throw new UsageError(
        'INVALID_ARGUMENT',
        `${this.command.name} refused ${JSON.stringify(request)}: ${failure.data.error}. Correct the request.`,
        { peer: this.command.name, request },
      );
    const result = schema.safeParse(answer);
    if (!result.success) {
      const error = this.#failure(
        `answered ${JSON.stringify(line.slice(0, 200))} to ${JSON.stringify(request)}`,
      );
      this.abort(error);
      throw error;
    }
    return result.data;
  }

  #end(error: Error): void {
    this.#ended ??= error;
    const waiter = this.#waiter;
    this.#waiter = undefined;
    waiter?.reject(this.#ended);
  }

  #late(request: object, timeoutMs: number): PeerError {
    return new PeerError(
      'TIMEOUT',
      `${this.command.name} did not answer ${JSON.stringify(request)} within ${timeoutMs} ms and was killed; ask for fewer steps or raise answerTimeoutMs.`,
      { peer: this.command.name, timeoutMs },
    );
  }

  #missing(what: string, cause?: unknown): UsageError {
    return new UsageError(
      'MISSING_COMPONENT',
      `${this.command.name} cannot be compared with: ${what}. To compare with it: ${this.command.install}`,
      { peer: this.command.name },
      cause,
    );
  }

  #failure(what: string): PeerError {
    const said = this.#errorText.trim();
    return new PeerError(
      'PEER_EXITED',
      `${this.command.name} ${what}${said === '' ? '' : `; it wrote: ${said}`}. Run ${[this.command.file, ...this.command.args].join(' ')} by hand to see why.`,
      { peer: this.command.name },
    );
  }
}

function parse(line: string): unknown {
  try {
    return JSON.parse(line);
  } catch {
    return undefined;
  }
}
