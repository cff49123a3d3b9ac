/**
 * The checkpoints of one tenant on one server, put together from the parts of its cores and written
 * in the background. The main thread's side of `cores/recovery.ts`. Invariants: a checkpoint is
 * written when all cores have given their parts, or not at all; snapshots' memory is given back
 * whatever happens.
 */
import { isDeepStrictEqual } from 'node:util';
import { unpack, UsageError } from '../base/index.ts';
import type { Answers, CorePart, Question, SpaceRange } from './cores/office.ts';
import { PiecePacker, piecesOf } from './cores/snapshot.ts';
import type { CoreSnapshot } from './cores/snapshot.ts';
import { keptSurely, newerCommon, ServerCheckpoints } from './durability/index.ts';
import type { Common, Kept, KeyState, ServerState } from './durability/index.ts';
import type { ServerHost } from './server-host.ts';
import type { TenantSpace } from './tenant-space.ts';

type Part = Extract<Question, { kind: 'checkpoint' }>;
type Awaited = Extract<Question, { kind: 'await-checkpoint' }>;
type Answered = Answers['checkpoint'];

/** One attempt: each core takes part in it once, with its part or with why it has none. */
interface Gathering {
  /** By core. */
  readonly parts: Map<number, Part['part']>;
  /** Cores that have given their part, or will as soon as they may. */
  readonly arrived: Set<number>;
  readonly written: Promise<readonly Kept[]>;
  readonly resolve: (kept: readonly Kept[]) => void;
  readonly reject: (error: unknown) => void;
}

/** Checkpoints that were asked of some cores only; then the first is given up. */
const MAX_GATHERING = 1024;

export interface TenantCheckpointsOptions {
  readonly namespace: string;
  readonly folder: string;
  /** Of the server. */
  readonly cores: number;
  readonly log: (line: string) => void;
  /** Called with the step when the first core gives its part, or says that it will. */
  readonly onBegun: (step: number) => void;
}

export class TenantCheckpoints {
  readonly #host: ServerHost;
  readonly #space: TenantSpace;
  readonly #namespace: string;
  readonly #folder: string;
  readonly #cores: number;
  readonly #log: (line: string) => void;
  readonly #onBegun: (step: number) => void;
  readonly #gathering = new Map<number, Gathering>();
  #files: Promise<ServerCheckpoints> | undefined;
  #before: Promise<readonly number[]> | undefined;
  /**
   * The step of the last one that all cores have answered, unless it failed; earlier ones have no
   * place after it.
   */
  #newest = 0;
  /** Training continues the run whose checkpoints are in the folder. */
  #hasRestored = false;
  /** By core, the checkpoint that it has gone back to, until all have. */
  readonly #goneTo = new Map<number, number>();
  /** Steps that some cores were told are on the disk already. */
  readonly #confirmed = new Set<number>();
  #written = 0;
  /** The newest that workers have named since training went back. */
  #common: Common;
  #isClosed = false;
  /** Writes follow each other. */
  #writing: Promise<void> = Promise.resolve();

  constructor(host: ServerHost, space: TenantSpace, options: TenantCheckpointsOptions) {
    this.#host = host;
    this.#space = space;
    this.#namespace = options.namespace;
    this.#folder = options.folder;
    this.#cores = options.cores;
    this.#log = options.log;
    this.#onBegun = options.onBegun;
  }

  async steps(): Promise<readonly number[]> {
    await this.#writing;
    return (await this.#open()).list();
  }

  /**
   * Resolves when the parts of all cores are on the disk, with the oldest log that the core may
   * still need.
   */
  async add({ core, step, part, common }: Part): Promise<Answered> {
    // One that is on the disk since before a restart is not gathered again: some cores may never be
    // asked for it.
    const isKept = async () => step >= this.#newest && (await this.#stepsBefore()).includes(step);
    if ('log' in part && part.log === null && (await isKept())) {
      return this.#confirm(core, step, part);
    }
    if ('failure' in part && this.#confirmed.has(step)) throw unpack(part.failure);
    if (this.#isClosed) {
      this.#release(part);
      throw this.#ended();
    }
    if (step < this.#newest) {
      this.#release(part);
      throw this.#tooLate(step, this.#newest);
    }
    const gathering = this.#gatheringOf(step);
    // After going back a core gives its part once more.
    const earlier = gathering.parts.get(core);
    if (earlier) this.#release(earlier);
    gathering.parts.set(core, part);
    gathering.arrived.add(core);
    this.#common = newerCommon(this.#common, common);
    if (gathering.parts.size === this.#cores) this.#settle(step, gathering);
    const kept = await gathering.written;
    // Two that are good must be left to go back to, or all that was logged since the beginning.
    const logs = kept.map((one) => one.logs[core] ?? 0);
    const firstLog = kept.length < 2 ? undefined : Math.min(...logs);
    const steps = kept.map((one) => one.step);
    return { firstLog, kept: keptSurely(steps, this.#common) };
  }

  /**
   * The core cannot give its part yet. If no core is before that step, what was not asked of all of
   * them never will be.
   */
  await({ core, step }: Awaited): null {
    if (step < this.#newest) return null;
    const { arrived } = this.#gatheringOf(step);
    arrived.add(core);
    if (arrived.size === this.#cores) this.#giveUpBefore(step);
    return null;
  }

  /** The good checkpoints that there were when this process began. */
  #stepsBefore(): Promise<readonly number[]> {
    this.#before ??= this.#open()
      .then((files) => files.list())
      .catch(() => {
        this.#before = undefined;
        return [];
      });
    return this.#before;
  }

  /** A checkpoint that was there before counts as written, unless it is of another run. */
  #confirm(core: number, step: number, part: CorePart): Promise<Answered> {
    this.#confirmed.add(step);
    const failed = this.#gathering.get(step);
    if (failed) {
      this.#gathering.delete(step);
      const [first] = failed.parts.values();
      failed.reject(first && 'failure' in first ? unpack(first.failure) : this.#tooLate(step, step));
      for (const one of failed.parts.values()) this.#release(one);
    }
    return this.#afterWrites(async () => {
      try {
        // Going back to a checkpoint of the folder continues its run.
        if (!this.#hasRestored) await this.#checkSame(core, step, part);
        return { firstLog: undefined, kept: [step] };
      } finally {
        this.#release(part);
      }
    });
  }

  async #checkSame(core: number, step: number, { snapshot }: CorePart): Promise<void> {
    const { keys } = await (await this.#open()).read(step);
    const written = keys.filter(({ name }) => name.startsWith(`${core} `));
    if (isDeepStrictEqual(written.map(contentOf), this.#keysOf(core, snapshot).map(contentOf))) return;
    throw new UsageError(
      'CHECKPOINT_MISMATCH',
      `Checkpoint ${step} in ${this.#folder} is of another run. Go back to it to continue that run, ` +
        'or give another folder.',
      { path: this.#folder, step },
    );
  }

  /** The newest good checkpoint, for a core that begins. */
  async recover(core: number): Promise<Answers['recover']> {
    await this.#writing;
    const { steps, problems } = await (await this.#open()).look();
    const step = steps.at(-1);
    if (step === undefined) return { newest: undefined, problems };
    return { newest: { step, ...(await this.#read(core, step)) }, problems };
  }

  /**
   * All cores go back to that checkpoint. What the core had then, in memory that it gives back;
   * `goneBack` when it has it again.
   */
  async restore(core: number, step: number): Promise<CorePart> {
    this.#goneTo.delete(core);
    for (const later of this.#gathering.keys()) this.#giveUp(later, this.#isBehind(later, step));
    return this.#afterWrites(async () => {
      const part = await this.#read(core, step);
      this.#newest = this.#written = step;
      this.#common = undefined;
      this.#confirmed.clear();
      return part;
    });
  }

  /**
   * Nothing is left of what was trained after it as soon as all cores have gone back: with other
   * keys than those in the files nothing is removed.
   */
  async goneBack(core: number, step: number): Promise<null> {
    this.#goneTo.set(core, step);
    const all = [...this.#goneTo.values()];
    if (all.length < this.#cores || all.some((other) => other !== step)) return null;
    this.#goneTo.clear();
    return this.#afterWrites(async () => {
      await (await this.#open()).goBackTo(step);
      return null;
    });
  }

  #afterWrites<T>(act: () => Promise<T>): Promise<T> {
    const acting = this.#writing.then(act);
    this.#writing = acting.then(ignore, ignore);
    return acting;
  }

  async #read(core: number, step: number): Promise<CorePart> {
    const state = await (await this.#open()).read(step);
    if (this.#isClosed) throw this.#ended();
    const { cores } = state;
    if (cores.length !== this.#cores) throw otherCores(this.#folder, step, cores.length, this.#cores);
    this.#hasRestored = true;
    // Later ones are taken again by all cores, and written anew.
    this.#before = this.#stepsBefore().then((steps) => steps.filter((one) => one <= step));
    const own = state.keys.filter(({ name }) => name.startsWith(`${core} `));
    const elements = own.reduce(
      (sum, { tensors }) => sum + tensors.reduce((all, { data }) => all + data.length, 0),
      0,
    );
    const segment = this.#space.allocate(Math.max(64, 4 * elements) + 64 * 8 * (own.length + 1));
    const packer = new PiecePacker();
    for (const { name, length, version, lastSteps, tensors } of own) {
      const [, piece, start, ...key] = name.split(' ');
      const copies = tensors.map((tensor) => {
        const region = segment.allocate('float32', tensor.data.length);
        region.view.set(tensor.data);
        return { name: tensor.name, at: { byteOffset: region.byteOffset, byteLength: region.byteLength } };
      });
      const ranges = (tensors[0]?.ranges ?? []).map((range) => [range.start, range.length] as const);
      packer.add({
        ...{ piece: Number(piece), key: key.join(' '), start: Number(start), length, ranges },
        ...{ version, lastSteps, tensors: copies },
      });
    }
    const { byteOffset, byteLength } = segment;
    return { ...cores[core]!, snapshot: { pieces: packer.end(), memory: { byteOffset, byteLength } } };
  }

  async close(): Promise<void> {
    this.#isClosed = true;
    for (const { parts, reject } of this.#gathering.values()) {
      for (const part of parts.values()) this.#release(part);
      reject(this.#ended());
    }
    this.#gathering.clear();
    // Whoever asks first what there was gives back its memory after that.
    await this.#before;
    await this.#writing;
    // A folder that could not be opened has nothing to close; whoever needed it was told.
    const files = await this.#files?.catch(() => undefined);
    await files?.close();
  }

  #ended(): UsageError {
    return new UsageError('INVALID_ARGUMENT', `service '${this.#namespace}' has ended; ask for another one`);
  }

  /** A folder that cannot be used now is tried again by the next who needs it. */
  #open(): Promise<ServerCheckpoints> {
    if (this.#files) return this.#files;
    const files = ServerCheckpoints.open({
      ...{ host: this.#host, folder: this.#folder, onProblem: this.#log },
    }).catch((error: unknown) => {
      this.#files = undefined;
      throw error;
    });
    return (this.#files = files);
  }

  #gatheringOf(step: number): Gathering {
    let gathering = this.#gathering.get(step);
    if (gathering === undefined) {
      let [resolve, reject]: [Gathering['resolve'], Gathering['reject']] = [() => undefined, () => undefined];
      const written = new Promise<readonly Kept[]>((done, failed) => ([resolve, reject] = [done, failed]));
      // Nobody may have given a part yet, and so nobody need hear of its end.
      written.catch(() => undefined);
      if (this.#gathering.size >= MAX_GATHERING)
        this.#giveUpBefore(1 + Math.min(...this.#gathering.keys()), step);
      gathering = { parts: new Map(), arrived: new Set(), written, resolve, reject };
      this.#gathering.set(step, gathering);
      this.#onBegun(step);
    }
    return gathering;
  }

  /** All cores have answered: it is written, or all of them receive the reason why it is not. */
  #settle(step: number, gathering: Gathering): void {
    this.#gathering.delete(step);
    this.#giveUpBefore(step);
    const parts = [...gathering.parts].sort(([a], [b]) => a - b).map(([, part]) => part);
    const failed = parts.find((part) => 'failure' in part);
    // At once: before anybody asks for it again, all cores have heard of it.
    if (failed) return this.#fail(step, parts, gathering, unpack(failed.failure));
    this.#newest = step;
    this.#writing = this.#writing.then(() => this.#write(step, parts as CorePart[], gathering));
  }

  #giveUpBefore(step: number, newest = step): void {
    for (const other of this.#gathering.keys())
      if (other < step) this.#giveUp(other, this.#tooLate(other, newest));
  }

  #giveUp(step: number, why: UsageError): void {
    const { parts, reject } = this.#gathering.get(step)!;
    this.#gathering.delete(step);
    for (const part of parts.values()) this.#release(part);
    reject(why);
  }

  async #write(step: number, parts: readonly CorePart[], gathering: Gathering): Promise<void> {
    try {
      const keys = parts.flatMap(({ snapshot }, core) => this.#keysOf(core, snapshot));
      const cores = parts.map(({ optimizer, log, batches }) => ({ optimizer, log, batches }));
      const state: ServerState = { namespace: this.#namespace, cores, generation: 0, keys };
      gathering.resolve(await (await this.#open()).write(step, state, this.#common));
      this.#written = step;
    } catch (error) {
      if (this.#newest === step) this.#newest = this.#written;
      return this.#fail(step, parts, gathering, error as Error);
    }
    for (const part of parts) this.#release(part);
  }

  #fail(step: number, parts: readonly Part['part'][], { reject }: Gathering, error: Error): void {
    for (const part of parts) this.#release(part);
    reject(error);
    this.#log(`checkpoint ${step} of '${this.#namespace}' was not written: ${error.message}`);
  }

  #tooLate(step: number, newest: number): UsageError {
    const namespace = this.#namespace;
    return new UsageError(
      'CHECKPOINT_NOT_WRITTEN',
      `Checkpoint ${step} of '${namespace}' was not written, because some cores had taken that of step ${newest} before. ` +
        'Let one worker call checkpoint(), or give steps that grow.',
      { namespace, step, newest },
    );
  }

  #isBehind(step: number, to: number): UsageError {
    const namespace = this.#namespace;
    return new UsageError(
      'CHECKPOINT_NOT_WRITTEN',
      `Checkpoint ${step} of '${namespace}' was not written, because training went back to that of step ${to}.`,
      { namespace, step, to },
    );
  }

  #release(part: Part['part']): void {
    if ('snapshot' in part) this.#space.releaseRange(part.snapshot.memory);
  }

  /** Threads can be handed shared memory, but not the memory of a WebAssembly instance. */
  #copyOf({ byteOffset, byteLength }: SpaceRange): SharedArrayBuffer {
    const copy = new SharedArrayBuffer(byteLength);
    new Uint8Array(copy).set(new Uint8Array(this.#space.buffer, byteOffset, byteLength));
    return copy;
  }

  #keysOf(core: number, snapshot: CoreSnapshot): KeyState[] {
    const copy = this.#copyOf(snapshot.memory);
    const dataOf = ({ byteOffset, byteLength }: SpaceRange) =>
      new Float32Array(copy, byteOffset - snapshot.memory.byteOffset, byteLength / 4);
    return Array.from(
      piecesOf(snapshot),
      ({ piece, key, start, length, ranges, version, lastSteps, tensors }) => ({
        ...{ name: `${core} ${piece} ${start} ${key}`, length, version, lastSteps },
        tensors: tensors.map(({ name, at }) => ({
          name,
          ranges: ranges.map(([from, count]) => ({ start: from, length: count })),
          data: dataOf(at),
        })),
      }),
    );
  }
}

/** What must be equal for two runs to be at the same place. */
function contentOf({ name, length, version, tensors }: KeyState): unknown {
  const bytesOf = ({ buffer, byteOffset, byteLength }: Float32Array) =>
    Buffer.from(buffer, byteOffset, byteLength);
  return { name, length, version, tensors: tensors.map(({ name, data }) => [name, bytesOf(data)]) };
}

const ignore = () => undefined;

function otherCores(folder: string, step: number, expected: number, actual: number): UsageError {
  return new UsageError(
    'CHECKPOINT_MISMATCH',
    `Checkpoint ${step} in ${folder} is of a server with ${expected} cores, this one has ${actual}. ` +
      'Start it with as many, or give another folder.',
    { path: folder, step, expected, actual },
  );
}
