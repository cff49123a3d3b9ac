/**
 * Exchanges of a whole model: one setting against the peers, or a sweep over chunk lengths or numbers of tenants of ours alone.
 * The points of a sweep are tenants of the same servers and worker processes, as far as memory allows, and alternate
 * like sides do: what the machine does meanwhile meets them all. Invariant: between figures that are compared only the
 * swept setting differs.
 */
import type { PeerGroup } from '../allreduce/index.ts';
import { calibrate, race } from '../allreduce/turns.ts';
import type { Contender } from '../allreduce/turns.ts';
import type { ExchangeCase, Sweep } from './exchange-case.ts';
import { besideMemory, caseOf, describeSide, modelBytes } from './measurement.ts';
import type { Measured, Setting, SideDescription } from './measurement.ts';
import { batchesOf, OurSide } from './our-side.ts';
import type { TenantSettings, Variant } from './our-side.ts';
import { checkSameWork, startPeers } from './peer-sides.ts';
import type { ExchangePeer, PeerSide } from './peer-sides.ts';

const KB = 1024;
const CHUNK_SWEEP = [4, 8, 16, 32, 64, 128, 256, 512, 1024].map((size) => size * KB);
const TENANT_SWEEP = [1, 2, 4, 8];

export async function measureModel(
  setting: Setting,
  sweep: Exclude<Sweep, 'assignment'> | null,
): Promise<Measured> {
  const { placement } = setting;
  const threads = placement.servers * placement.coresPerServer;
  const batches = batchesOf(variantsOf(setting, sweep), setting);
  const skipped: string[] = [];
  const sides = new Map<string, SideDescription>();
  const { result, memory } = await besideMemory(setting, threads, async () => {
    const times: (readonly [Variant, Times])[] = [];
    for (const batch of batches) {
      const one = await measureBatch({ ...setting, peers: sweep === null ? setting.peers : [] }, batch);
      times.push(...one.times);
      skipped.push(...one.skipped);
      for (const side of one.sides) sides.set(side.name, side);
    }
    return times;
  });
  const cases = result.map(([{ tenants }, { micros, peers }]): ExchangeCase =>
    caseOf(setting, tenants, memory, micros, peers),
  );
  return { cases, memory, skipped, sides: [...sides.values()] };
}

function variantsOf(setting: Setting, sweep: Exclude<Sweep, 'assignment'> | null): Variant[] {
  const { chunkBytes, aggregation, tenants: count } = setting;
  const usual = (): TenantSettings => ({ chunkBytes, aggregation, rows: null });
  if (sweep === null) return [{ name: 'ours', tenants: Array.from({ length: count }, usual) }];
  if (sweep === 'chunks') {
    return (['tall', 'wide'] as const).flatMap((kind) =>
      CHUNK_SWEEP.map((bytes) => ({
        name: `${kind}-${bytes}`,
        tenants: [{ ...usual(), chunkBytes: bytes, aggregation: kind }],
      })),
    );
  }
  // Few are the first of many.
  const all = Array.from({ length: Math.max(...TENANT_SWEEP) }, usual);
  return TENANT_SWEEP.map((tenants) => ({ name: `tenants-${tenants}`, tenants: all.slice(0, tenants) }));
}

/** Microseconds for each exchange. */
interface Times {
  readonly micros: number;
  readonly peers: Readonly<Partial<Record<ExchangePeer, number>>>;
}

interface BatchResult {
  readonly times: readonly (readonly [Variant, Times])[];
  readonly skipped: readonly string[];
  readonly sides: readonly SideDescription[];
}

async function measureBatch(setting: Setting, variants: readonly Variant[]): Promise<BatchResult> {
  const { workers: ranks, rounds, turnMs, onProgress } = setting;
  const peers: PeerSide[] = [];
  let ours: OurSide | undefined;
  try {
    onProgress(`starting Tributary: ${ranks} workers, ${setting.placement.servers} server(s)`);
    ours = await OurSide.start({ ...setting, variants });
    const skipped = await startPeers({ ...setting, ranks }, peers);
    const settings = { bytes: modelBytes(setting), ranks, turnMs };
    const ready = async (group: PeerGroup, names: readonly string[]): Promise<Contender> => {
      setting.signal?.throwIfAborted();
      // Once to warm up: compilers need to have seen the code, and memory to be there.
      await calibrate(group, names, settings);
      return calibrate(group, names, settings);
    };
    const own: Contender[] = [];
    for (const { name } of variants) {
      onProgress(`warming up Tributary (${name})`);
      own.push(await ready(ours.workers, [name]));
    }
    const others: Contender[] = [];
    for (const { group, variants: names } of peers) {
      onProgress(`warming up ${group.command.name}`);
      others.push(await ready(group, names));
    }
    checkSameWork([...own, ...others]);
    onProgress(`${rounds} rounds of ${own.length + others.length} turns of about ${turnMs} ms`);
    const medians = await race([...own, ...others], rounds);
    const byPeer = Object.fromEntries(peers.map(({ peer }, i) => [peer, medians.get(others[i]!)!]));
    return {
      times: variants.map(
        (variant, i) => [variant, { micros: medians.get(own[i]!)!, peers: byPeer }] as const,
      ),
      skipped,
      sides: [...ours.groups, ...peers.map(({ group }) => group)].map(describeSide),
    };
  } finally {
    await Promise.all([ours?.close(), ...peers.map(({ group }) => group.close())]);
  }
}
