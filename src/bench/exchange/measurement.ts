/**
 * What the measurements of `bench exchange` have in common: what they are given, what they return, and how a case is made of
 * a rate. Invariant: the memory is measured right before and right after what is compared with it.
 */
import { cpus } from 'node:os';
import type { Aggregation } from '../../server/index.ts';
import type { PeerGroup } from '../allreduce/index.ts';
import { bytesPerExchange } from './exchange-case.ts';
import type { ExchangeBench, ExchangeCase, MemoryFigures } from './exchange-case.ts';
import { measureMemoryBandwidth } from './memory-bound.ts';
import { elementsOf } from './models.ts';
import type { ModelTensor } from './models.ts';
import type { ExchangePeerOptions } from './peer-commands.ts';
import type { ExchangePeer } from './peer-sides.ts';
import type { OurSideOptions, TenantSettings } from './our-side.ts';

/** The options of the bench, checked and complete. */
export interface Setting extends Omit<OurSideOptions, 'variants'> {
  /** As peers are told of it. */
  readonly model: ExchangePeerOptions['model'];
  readonly modelName: string;
  readonly tensors: readonly ModelTensor[];
  readonly tenants: number;
  readonly chunkBytes: number;
  readonly aggregation: Aggregation;
  readonly peers: readonly ExchangePeer[];
  readonly rounds: number;
  readonly turnMs: number;
  readonly onProgress: (message: string) => void;
}

export interface TableSize {
  readonly tableRows: number;
  readonly rowLength: number;
}

export interface SideDescription {
  readonly name: string;
  readonly command: string;
  readonly environment: Readonly<Record<string, string>>;
}

export interface Measured extends Pick<ExchangeBench, 'cases' | 'skipped' | 'memory'> {
  readonly sides: readonly SideDescription[];
}

export function describeSide({ command, commandLine }: PeerGroup): SideDescription {
  return { name: command.name, command: commandLine, environment: command.settings };
}

export function modelBytes({ tensors }: Pick<Setting, 'tensors'>): number {
  return 4 * elementsOf(tensors);
}

/** The result of `action`, with what the memory allowed before and after it. */
export async function besideMemory<T>(
  setting: Setting,
  threads: number,
  action: () => Promise<T>,
): Promise<{ readonly result: T; readonly memory: MemoryFigures }> {
  const bytes = modelBytes(setting);
  // A model of a few elements cannot be shared among many.
  const most = Math.max(1, Math.min(threads, cpus().length, bytes / 4));
  const measure = (): Promise<number> => measureMemoryBandwidth({ bytes, threads: most });
  setting.onProgress('measuring the memory');
  const before = await measure();
  const result = await action();
  setting.onProgress('measuring the memory again');
  return { result, memory: { bytes, threads: most, before, after: await measure() } };
}

/** Of so many microseconds for each exchange; peers' times in the same unit. */
export function caseOf(
  setting: Setting,
  tenants: readonly Pick<TenantSettings, 'aggregation' | 'chunkBytes'>[],
  memory: MemoryFigures,
  micros: number,
  peers: Readonly<Partial<Record<ExchangePeer, number>>> = {},
): ExchangeCase {
  const { modelName: model, workers, clients, transport, placement } = setting;
  const { aggregation, chunkBytes } = tenants[0]!;
  const exchangesPerSec = 1e6 / micros;
  const bytesPerSec = bytesPerExchange(workers, modelBytes(setting)) * exchangesPerSec;
  const rateOf = (peer: ExchangePeer): number | null =>
    peers[peer] === undefined ? null : 1e6 / peers[peer];
  const ratioTo = (rate: number | null): number | null => (rate === null ? null : exchangesPerSec / rate);
  const [gloo, openMpi] = [rateOf('gloo'), rateOf('openmpi')];
  return {
    ...{ model, workers, servers: placement.servers, clients, tenants: tenants.length, transport },
    ...{ aggregation, chunkBytes, exchangesPerSec, bytesPerSec },
    memoryShare: bytesPerSec / ((memory.before + memory.after) / 2),
    ...{ glooExchangesPerSec: gloo, ratioGloo: ratioTo(gloo) },
    ...{ openmpiExchangesPerSec: openMpi, ratioOpenmpi: ratioTo(openMpi) },
  };
}
