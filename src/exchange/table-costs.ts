/**
 * What it costs to exchange rows of a table by collectives: the workers tell each other how many they have, gather them, and each adds
 * them up. Measured on a table of the same row length that nobody trains. All workers call it together.
 * Invariant: on all workers the same figures, those of the slowest.
 */
import type { CommunicationThread } from '../communication/index.ts';
import { allocateRowPlan, rowPlanBytes, type Kernels } from '../kernels/index.ts';
import { tellAll } from './agreement.ts';
import { RowsTable } from './collective-tables.ts';
import type { MessageCosts } from './message-costs.ts';

/** Of the tables of a model, what is worth measuring. */
export interface TableShape {
  readonly rowLength: number;
  /** The most rows that one worker has in a step. */
  readonly mostRows: number;
}

const [WARM_UP, REPEATS] = [1, 5];

/** Counts of rows for which an exchange is timed. */
export function rowCounts({ mostRows }: TableShape): number[] {
  const counts = [mostRows / 64, mostRows / 8, mostRows].map((count) => Math.max(1, Math.round(count)));
  return [...new Set(counts)];
}

/** Bytes that a worker hands over. */
export function rowBytes(count: number, { rowLength }: TableShape): number {
  return 4 * count * (rowLength + 1);
}

/** Milliseconds by the bytes that one worker hands over. */
export async function measureGather(
  thread: CommunicationThread,
  kernels: Kernels,
  shape: TableShape,
): Promise<MessageCosts> {
  const { rank, size } = thread.world;
  const { rowLength, mostRows } = shape;
  const capacity = mostRows * size;
  const segment = thread.space.allocate(rowPlanBytes(capacity));
  const place = {
    ...{ rowLength, tableRows: 2 * capacity, count: 0, plan: allocateRowPlan(segment, capacity) },
    rows: thread.allocate('float32', capacity * rowLength),
  };
  const table = new RowsTable(thread, place);
  const exchange = (count: number): number => {
    // Each worker has rows of its own, as words of different texts mostly are.
    for (let i = 0; i < count; i++) place.plan.indices.view[i] = 2 * (i * size + rank);
    place.count = count;
    const startedMs = performance.now();
    const counts = tellAll(thread, [count], 'rows').map(([rows]) => rows!);
    for (const handle of table.gather(thread, kernels, counts, 1 / size)) handle.wait();
    table.sum(kernels);
    return performance.now() - startedMs;
  };
  const own = rowCounts(shape).map((count) =>
    median(Array.from({ length: WARM_UP + REPEATS }, () => exchange(count)).slice(WARM_UP)),
  );
  segment.close();
  await table.close(thread);
  await thread.free(place.rows);
  return slowest(thread, rowCounts(shape), own, shape);
}

/** Points of the slowest worker; a shorter exchange that took longer was disturbed. */
export function slowest(
  thread: CommunicationThread,
  counts: readonly number[],
  own: readonly number[],
  shape: TableShape,
): MessageCosts {
  const all = tellAll(thread, own, 'costs of rows');
  const most = own.map((_, i) => Math.max(...all.map((times) => times[i]!)));
  return counts.map((count, i) => ({ bytes: rowBytes(count, shape), ms: Math.min(...most.slice(i)) }));
}

export function median(times: number[]): number {
  return times.sort((a, b) => a - b)[Math.floor(times.length / 2)]!;
}
