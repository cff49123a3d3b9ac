/** Several cores of a server in one test: keys cut into small chunks that are dealt out to the cores in turn. */
import type { StoreKey } from '../../src/base/index.ts';
import { Kernels } from '../../src/kernels/index.ts';
import { SharedSpace } from '../../src/memory/index.ts';
import type { Region } from '../../src/memory/index.ts';
import { ServerCore } from '../../src/server/index.ts';
import type { PushReply, ServerCoreOptions, UpdateRule } from '../../src/server/index.ts';

export interface CoresOptions extends Omit<ServerCoreOptions, 'kernels' | 'slotRegion'> {
  readonly workers: number;
  /** Default 3; pushes are added up unless `updater` says otherwise. */
  readonly cores?: number;
  /** Elements of a chunk. Default 16. */
  readonly chunkLength?: number;
}

export class Cores {
  readonly space = SharedSpace.create({ maxBytes: 64 * 2 ** 20 });
  readonly kernels = Kernels.create(this.space);
  readonly cores: readonly ServerCore[];
  readonly slots = new Map<string, Region<'float32'>>();
  readonly #segment = this.space.allocate(32 * 2 ** 20);
  readonly #chunkLength: number;

  constructor({ workers, cores = 3, chunkLength = 16, ...options }: CoresOptions) {
    this.#chunkLength = chunkLength;
    const slotRegion = (key: StoreKey, slot: string, length: number): Region<'float32'> => {
      const name = `${key}/${slot}`;
      if (!this.slots.has(name)) this.slots.set(name, this.#segment.allocate('float32', length));
      return this.slots.get(name)!;
    };
    this.cores = Array.from({ length: cores }, () => {
      const core = new ServerCore({ updater: 'accumulate', ...options, kernels: this.kernels, slotRegion });
      for (let worker = 0; worker < workers; worker++) core.admit(worker);
      return core;
    });
  }

  floats(values: ArrayLike<number>): Region<'float32'> {
    const region = this.#segment.allocate('float32', values.length);
    region.view.set(values);
    return region;
  }

  whole(values: ArrayLike<number>): Region<'int32'> {
    const region = this.#segment.allocate('int32', values.length);
    region.view.set(values);
    return region;
  }

  /** Tables go to the first core whole; all else in chunks to all cores. */
  open(name: string, values: ArrayLike<number>, rowLength?: number): Region<'float32'> {
    const value = this.floats(values);
    this.cores.forEach((core, index) => {
      const chunks = [];
      for (let i = 0, start = 0; start < value.length; i++, start += this.#chunkLength) {
        const owner = rowLength === undefined ? i % this.cores.length : 0;
        const length = Math.min(this.#chunkLength, value.length - start);
        if (owner === index) chunks.push({ start, length });
      }
      core.open({ name, value, chunks, rowLength });
    });
    return value;
  }

  setRule(make: (kernels: Kernels) => UpdateRule): void {
    for (const core of this.cores) core.setRule(make(this.kernels));
  }

  /** Pushes to all cores; the replies come as they come. */
  push(
    worker: number,
    key: string,
    step: number,
    gradient: Region<'float32'>,
    samples?: number,
  ): PushReply[] {
    const replies: PushReply[] = [];
    for (const core of this.cores) {
      core.push({ worker, key, step, gradient, samples }, (reply) => replies.push(reply));
    }
    return replies;
  }
}
