/** `tributary bench allreduce`: how its result is printed and drawn; it measures nothing itself. */
import { UsageError } from '../../base/index.ts';
import { benchAllReduce, curves, formatBytes } from '../../bench/index.ts';
import type { AllReduceBench, BenchTransport } from '../../bench/index.ts';
import { table } from '../format.ts';
import type { CommandIo } from '../io.ts';
import type { Shown } from './bench.ts';

export interface AllReduceBenchCommandOptions {
  readonly transport?: string | undefined;
  readonly ranks?: number | undefined;
  readonly algorithm?: string | undefined;
  readonly sizes?: string | undefined;
  readonly rounds?: number | undefined;
  readonly 'turn-ms'?: number | undefined;
}

export async function runAllReduce(given: AllReduceBenchCommandOptions, io: CommandIo): Promise<Shown> {
  const result = await benchAllReduce({
    env: io.env,
    transport: (given.transport ?? 'shm') as BenchTransport,
    ranks: given.ranks,
    algorithms: given.algorithm?.split(',').map((name) => name.trim()),
    sizes: given.sizes?.split(',').map(readSize),
    rounds: given.rounds,
    turnMs: given['turn-ms'],
    signal: io.signal,
    onProgress: (message) => io.stderr.write(`${message}\n`),
  });
  return { result, picture: () => curves(result), print: () => print(result, io) };
}

/** '64KB', '1 MB', '4096'. */
function readSize(text: string): number {
  const match = /^\s*(\d+)\s*(B|KB|MB)?\s*$/i.exec(text);
  if (match)
    return Number(match[1]) * { B: 1, KB: 1024, MB: 1024 * 1024 }[(match[2] ?? 'B').toUpperCase() as 'B'];
  throw new UsageError(
    'INVALID_COMMAND',
    `--sizes has ${JSON.stringify(text)}; give lengths as in --sizes 1KB,64KB,4MB.`,
    { size: text },
  );
}

function print({ machine, transport, ranks, notes, skipped, cases }: AllReduceBench, io: CommandIo): void {
  const micros = (value: number | null) =>
    value === null ? '-' : value < 100 ? value.toFixed(1) : value.toFixed(0);
  const times = (value: number | null) => (value === null ? '-' : `${value.toFixed(2)}x`);
  const rows = cases.map((one) => [
    formatBytes(one.bytes),
    one.algorithm,
    micros(one.oursUs),
    micros(one.openmpiUs),
    times(one.ratioOpenmpi),
    micros(one.glooUs),
    times(one.ratioGloo),
    one.algbwGBs.toFixed(2),
    one.busbwGBs.toFixed(2),
  ]);
  io.stdout.write(
    `${machine.processor}, ${machine.cores} cores, Node ${machine.node}; ${ranks} ranks over ${transport}, microseconds and GB/s\n`,
  );
  io.stdout.write(
    `${table([['bytes', 'algorithm', 'tributary', 'Open MPI', 'ratio', 'gloo', 'ratio', 'algbw', 'busbw'], ...rows])}\n`,
  );
  for (const note of notes) io.stdout.write(`${note}\n`);
  for (const note of skipped) io.stderr.write(`Left out: ${note}\n`);
}
