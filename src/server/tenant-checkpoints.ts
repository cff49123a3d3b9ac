/**
 * The checkpoints of one tenant on one server, put together from the parts of its cores and written in the background. The
 * main thread's side of `cores/recovery.ts`. Invariants: a checkpoint is written when all cores have given their parts,
 * or not at all; snapshots' memory is given back whatever happens.
 */
import { UsageError } from '../base/index.ts';
import type { Answers, Question, SpaceRange } from './cores/office.ts';
import type { CoreSnapshot, PieceSnapshot } from './cores/snapshot.ts';
import { ServerCheckpoints } from './durability/index.ts';
import type { ServerHost } from './server-host.ts';
import type { TenantSpace } from './tenant-space.ts';
import type { KeyState, ServerState } from './durability/index.ts';

type Part = Extract<Question, { kind: 'checkpoint' }>;

interface Gathering {
  /** By core. */
  readonly parts: Map<number, Part>;
  readonly written: Promise<void>;
  readonly resolve: () => void;
  readonly reject: (error: unknown) => void;
}

export class TenantCheckpoints {
  readonly #host: ServerHost;
  readonly #space: TenantSpace;
  readonly #namespace: string;
  readonly #folder: string;
  readonly #cores: number;
  readonly #log: (line: string) => void;
  readonly #gathering = new Map<number, Gathering>();
  #files: Promise<ServerCheckpoints> | undefined;
  #isClosed = false;
  /** Writes follow each other. */
  #writing: Promise<void> = Promise.resolve();

  constructor(
    host: ServerHost,
    space: TenantSpace,
    namespace: string,
    folder: string,
    cores: number,
    log: (line: string) => void,
  ) {
    this.#host = host;
    this.#space = space;
    this.#namespace = namespace;
    this.#folder = folder;
    this.#cores = cores;
    this.#log = log;
  }

  async steps(): Promise<readonly number[]> {
    await this.#writing;
    return (await this.#open()).list();
  }

  /** Resolves when the parts of all cores are on the disk. */
  add(part: Part): Promise<void> {
    const gathering = this.#gatheringOf(part.step);
    // After going back a core gives its part once more.
    const earlier = gathering.parts.get(part.core);
    if (earlier) this.#space.releaseRange(earlier.snapshot.memory);
    gathering.parts.set(part.core, part);
    if (gathering.parts.size === this.#cores) {
      this.#gathering.delete(part.step);
      this.#writing = this.#writing.then(() => this.#write(part.step, gathering));
    }
    return gathering.written;
  }

  /** What one core had at that step, in memory that the core gives back. */
  async restore(core: number, step: number): Promise<Answers['restore']> {
    const state = await (await this.#open()).read(step);
    if (this.#isClosed) throw this.#ended();
    const own = state.keys.filter(({ name }) => name.startsWith(`${core} `));
    const elements = own.reduce(
      (sum, { tensors }) => sum + tensors.reduce((all, { data }) => all + data.length, 0),
      0,
    );
    const segment = this.#space.allocate(Math.max(64, 4 * elements) + 64 * 8 * (own.length + 1));
    const pieces = own.map(({ name, length, version, lastSteps, tensors }): PieceSnapshot => {
      const [, piece, start, ...key] = name.split(' ');
      const copies = tensors.map((tensor) => {
        const region = segment.allocate('float32', tensor.data.length);
        region.view.set(tensor.data);
        return { name: tensor.name, at: { byteOffset: region.byteOffset, byteLength: region.byteLength } };
      });
      const ranges = tensors[0]!.ranges.map((range) => [range.start, range.length] as const);
      return {
        ...{ piece: Number(piece), key: key.join(' '), start: Number(start), length, ranges },
        ...{ version, lastSteps, tensors: copies },
      };
    });
    const { byteOffset, byteLength } = segment;
    return { optimizer: state.optimizer, snapshot: { pieces, memory: { byteOffset, byteLength } } };
  }

  async close(): Promise<void> {
    this.#isClosed = true;
    for (const { parts, reject } of this.#gathering.values()) {
      for (const { snapshot } of parts.values()) this.#space.releaseRange(snapshot.memory);
      reject(this.#ended());
    }
    this.#gathering.clear();
    await this.#writing;
    // A folder that could not be opened has nothing to close; whoever needed it was told.
    const files = await this.#files?.catch(() => undefined);
    await files?.close();
  }

  #ended(): UsageError {
    return new UsageError('INVALID_ARGUMENT', `service '${this.#namespace}' has ended; ask for another one`);
  }

  /** A folder that could not be opened is tried again by the next who needs it. */
  #open(): Promise<ServerCheckpoints> {
    if (this.#files) return this.#files;
    const files = ServerCheckpoints.open({
      ...{ host: this.#host, folder: this.#folder, onProblem: this.#log },
    });
    files.catch(() => (this.#files = undefined));
    return (this.#files = files);
  }

  #gatheringOf(step: number): Gathering {
    let gathering = this.#gathering.get(step);
    if (gathering === undefined) {
      let [resolve, reject]: [() => void, (error: unknown) => void] = [() => undefined, () => undefined];
      const written = new Promise<void>((done, failed) => ([resolve, reject] = [done, failed]));
      gathering = { parts: new Map(), written, resolve, reject };
      this.#gathering.set(step, gathering);
    }
    return gathering;
  }

  async #write(step: number, { parts: byCore, resolve, reject }: Gathering): Promise<void> {
    const parts = [...byCore.values()];
    try {
      const keys = parts.flatMap(({ core, snapshot }) => this.#keysOf(core, snapshot));
      const state: ServerState = {
        ...{ namespace: this.#namespace, optimizer: parts[0]!.optimizer, generation: 0, keys },
      };
      await (await this.#open()).write(step, state);
      resolve();
    } catch (error) {
      this.#log(`checkpoint ${step} of '${this.#namespace}' was not written: ${(error as Error).message}`);
      reject(error);
    } finally {
      for (const { snapshot } of parts) this.#space.releaseRange(snapshot.memory);
    }
  }

  /** Threads can be handed shared memory, but not the memory of a WebAssembly instance. */
  #copyOf({ byteOffset, byteLength }: SpaceRange): Float32Array {
    const copy = new Float32Array(new SharedArrayBuffer(byteLength));
    copy.set(new Float32Array(this.#space.buffer, byteOffset, byteLength / 4));
    return copy;
  }

  #keysOf(core: number, { pieces }: CoreSnapshot): KeyState[] {
    return pieces.map(({ piece, key, start, length, ranges, version, lastSteps, tensors }) => ({
      ...{ name: `${core} ${piece} ${start} ${key}`, length, version, lastSteps },
      tensors: tensors.map(({ name, at }) => ({
        name,
        ranges: ranges.map(([from, count]) => ({ start: from, length: count })),
        data: this.#copyOf(at),
      })),
    }));
  }
}
