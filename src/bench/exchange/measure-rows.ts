/**
 * Exchanges of some rows of a table against exchanges of the whole table, for tables of different lengths, ours alone. Both
 * are tenants of the same servers and alternate. Invariant: rows are pushed and pulled by index; nothing of the rest of
 * the table travels.
 */
import { calibrate, race } from '../allreduce/turns.ts';
import type { Contender } from '../allreduce/turns.ts';
import { bytesPerRowsExchange } from './exchange-case.ts';
import type { RowsCase } from './exchange-case.ts';
import { describeSide, modelBytes } from './measurement.ts';
import type { Measured, Setting, SideDescription, TableSize } from './measurement.ts';
import { OurSide } from './our-side.ts';
import { rowSets } from './rows-tenant.ts';

export async function measureRows(
  setting: Setting,
  tables: readonly TableSize[],
  rows: number,
): Promise<Measured> {
  // Before anything is started: the workers would only find out after a while.
  for (const { tableRows } of tables) rowSets({ rows, tableRows, worker: 0, workers: setting.workers });
  const cases: RowsCase[] = [];
  let sides: readonly SideDescription[] = [];
  for (const table of tables) {
    const one = await measureTable(setting, table, rows);
    cases.push(one.case);
    sides = one.sides;
  }
  return { cases, memory: null, skipped: [], sides };
}

async function measureTable(
  common: Setting,
  { tableRows, rowLength }: TableSize,
  rows: number,
): Promise<{ readonly case: RowsCase; readonly sides: readonly SideDescription[] }> {
  const tensors = [{ key: 'table', length: tableRows * rowLength, rowLength }];
  const setting = { ...common, tensors };
  const { workers, clients, transport, aggregation, chunkBytes, rounds, turnMs, onProgress } = setting;
  const tenant = { chunkBytes, aggregation };
  const variants = [
    { name: 'rows', tenants: [{ ...tenant, rows }] },
    { name: 'dense', tenants: [{ ...tenant, rows: null }] },
  ];
  onProgress(`starting Tributary with a table of ${tableRows} rows of ${rowLength}`);
  const ours = await OurSide.start({ ...setting, variants });
  try {
    const contenders: Contender[] = [];
    for (const { name } of variants) {
      const settings = { bytes: modelBytes(setting), ranks: workers, turnMs };
      await calibrate(ours.workers, [name], settings);
      contenders.push(await calibrate(ours.workers, [name], settings));
    }
    onProgress(`${rounds} rounds of rows and dense`);
    const medians = await race(contenders, rounds);
    const [byRows, dense] = contenders.map((one) => 1e6 / medians.get(one)!) as [number, number];
    return {
      case: {
        ...{ model: 'table', workers, servers: setting.placement.servers, clients, tenants: 1, transport },
        ...{ aggregation, chunkBytes, exchangesPerSec: byRows },
        bytesPerSec: bytesPerRowsExchange(workers, rows, rowLength) * byRows,
        ...{ memoryShare: null, glooExchangesPerSec: null, ratioGloo: null },
        ...{ openmpiExchangesPerSec: null, ratioOpenmpi: null },
        ...{ tableRows, rowLength, rows, denseExchangesPerSec: dense, ratioDense: byRows / dense },
      },
      sides: ours.groups.map(describeSide),
    };
  } finally {
    await ours.close();
  }
}
