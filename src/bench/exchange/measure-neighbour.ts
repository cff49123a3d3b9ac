/**
 * Exchanges of a tenant whose neighbour on the same servers is idle, against those whose neighbour means badly. The neighbour is a
 * process of its own with a service of its own, and is there all the time; turns alternate. Its processor time is not
 * taken out: where processors are few, a neighbour costs also what it uses of them. Invariant: the weights are right, bit by
 * bit, after every turn.
 */
import { calibrate, race } from '../allreduce/turns.ts';
import type { Contender } from '../allreduce/turns.ts';
import { bytesPerExchange } from './exchange-case.ts';
import type { NeighbourCase } from './exchange-case.ts';
import { describeSide, modelBytes } from './measurement.ts';
import type { Measured, Setting } from './measurement.ts';
import { OurSide } from './our-side.ts';

export const NEIGHBOUR_MODES = ['idle', 'hostile'] as const;
export type NeighbourMode = (typeof NEIGHBOUR_MODES)[number];

const VARIANT = 'ours';

export async function measureNeighbour(setting: Setting): Promise<Measured> {
  const { workers, clients, transport, aggregation, chunkBytes, rounds, turnMs, onProgress } = setting;
  const tenants = [{ chunkBytes, aggregation, rows: null }];
  onProgress(`starting Tributary: ${workers} workers, ${setting.placement.servers} server(s), a neighbour`);
  const side = await OurSide.start({
    ...{ ...setting, variants: [{ name: VARIANT, tenants }], hasNeighbour: true },
  });
  try {
    const beside = (mode: NeighbourMode): Contender['group'] => ({
      command: side.workers.command,
      async turn(turn) {
        await side.neighbour!.turn({ bytes: 4, iterations: 1, burst: 1, algorithm: mode });
        return side.workers.turn(turn);
      },
    });
    const settings = { bytes: modelBytes(setting), ranks: workers, turnMs };
    const contenders: Contender[] = [];
    for (const mode of NEIGHBOUR_MODES) {
      onProgress(`warming up beside a neighbour that is ${mode}`);
      await calibrate(beside(mode), [VARIANT], settings);
      contenders.push(await calibrate(beside(mode), [VARIANT], settings));
    }
    onProgress(`${rounds} rounds of ${contenders.length} turns of about ${turnMs} ms`);
    const medians = await race(contenders, rounds);
    const [alone, disturbed] = contenders.map((one) => 1e6 / medians.get(one)!) as [number, number];
    const one: NeighbourCase = {
      ...{ model: setting.modelName, workers, servers: setting.placement.servers, clients, tenants: 1 },
      ...{ transport, aggregation, chunkBytes, exchangesPerSec: disturbed },
      bytesPerSec: bytesPerExchange(workers, modelBytes(setting)) * disturbed,
      ...{ memoryShare: null, glooExchangesPerSec: null, ratioGloo: null },
      ...{ openmpiExchangesPerSec: null, ratioOpenmpi: null },
      ...{ aloneExchangesPerSec: alone, ratioAlone: disturbed / alone },
    };
    return { cases: [one], memory: null, skipped: [], sides: side.groups.map(describeSide) };
  } finally {
    await side.close();
  }
}
