/** `tributary bench exchange`: its options, and how its result is printed and drawn; it measures nothing itself. */
import { UsageError } from '../../base/index.ts';
import {
  barChart,
  benchExchange,
  chunkSweepChart,
  EXCHANGE_PEERS,
  exchangeModels,
  formatBytes,
  PLACEMENTS,
  SWEEPS,
  tenantsChart,
} from '../../bench/index.ts';
import type {
  AssignmentCase,
  Bar,
  ExchangeBench,
  ExchangeCase,
  ExchangePeer,
  ExchangeTransport,
  NeighbourCase,
  Placement,
  RowsCase,
  Sweep,
} from '../../bench/index.ts';
import type { OptionSpecs, OptionValues } from '../command.ts';
import { percent, table, thousands } from '../format.ts';
import type { CommandIo } from '../io.ts';
import type { Shown } from './bench.ts';
import { asTyped } from './bench-refusal.ts';

export const exchangeOptions = {
  model: {
    kind: 'text',
    value: 'NAME',
    help: `exchange: ${Object.keys(exchangeModels).join(', ')}, or lengths of tensors as in 1000,64,64. Default resnet18.`,
  },
  workers: { kind: 'count', help: 'exchange: processes that exchange. Default 2.' },
  servers: { kind: 'count', help: 'exchange: servers of ours. Default: what the placement has.' },
  clients: {
    kind: 'count',
    help: 'exchange: groups of workers that reduce among themselves and face the servers as one. Default: as many as workers.',
  },
  unfused: {
    kind: 'flag',
    help: 'exchange: clients reduce first even where their workers and the servers share memory. Default: workers then face the servers directly.',
  },
  tenants: { kind: 'count', help: 'exchange: models exchanged at the same time. Default 1.' },
  placement: {
    kind: 'text',
    choices: PLACEMENTS,
    help: "exchange: servers in the workers' processes or not (C, NC), one central or sharded (C, S). Default NCC (shm), CS (tcp).",
  },
  cores: {
    kind: 'count',
    help: 'exchange: threads of each server. Default: the cores of this machine shared among the servers; 1 for CS.',
  },
  aggregation: {
    kind: 'text',
    choices: ['tall', 'wide'],
    help: 'exchange: chunk by chunk over all workers, or whole gradients first. Default tall.',
  },
  'chunk-bytes': { kind: 'count', help: 'exchange: longest piece updated at once. Default 32768.' },
  sweep: {
    kind: 'text',
    choices: SWEEPS,
    help: 'exchange: vary chunk lengths, tenants (1 to 8), or key-by-core against worker-by-core; ours only.',
  },
  rows: {
    kind: 'count',
    help: 'exchange: rows of a table that each worker touches in a step, against dense exchanges.',
  },
  'table-rows': { kind: 'count', help: 'exchange: rows of that table. Default 100000, then 800000.' },
  'row-length': { kind: 'count', help: 'exchange: elements of a row of that table. Default 128.' },
  neighbour: {
    kind: 'flag',
    help: 'exchange: beside another tenant that means badly, against beside an idle one; ours only.',
  },
  peers: {
    kind: 'text',
    value: 'A,B',
    help: `exchange: ${EXCHANGE_PEERS.join(', ')} or none. Default all that are installed.`,
  },
} as const satisfies OptionSpecs;

export interface ExchangeCommandOptions extends OptionValues<typeof exchangeOptions> {
  readonly transport?: string | undefined;
  readonly rounds?: number | undefined;
  readonly 'turn-ms'?: number | undefined;
}

export async function runExchange(given: ExchangeCommandOptions, io: CommandIo): Promise<Shown> {
  const result = await benchExchange({
    env: io.env,
    model: given.model,
    workers: given.workers,
    servers: given.servers,
    clients: given.clients,
    unfused: given.unfused,
    tenants: given.tenants,
    transport: readTransport(given.transport),
    placement: given.placement as Placement | undefined,
    cores: given.cores,
    aggregation: given.aggregation as 'tall' | 'wide' | undefined,
    chunkBytes: given['chunk-bytes'],
    sweep: given.sweep as Sweep | undefined,
    rows: given.rows,
    tableRows: given['table-rows'],
    rowLength: given['row-length'],
    neighbour: given.neighbour,
    peers: given.peers === undefined ? undefined : readPeers(given.peers),
    rounds: given.rounds,
    turnMs: given['turn-ms'],
    signal: io.signal,
    onProgress: (message) => io.stderr.write(`${message}\n`),
  }).catch(asTyped);
  return { result, picture: () => drawn(result), print: () => print(result, io) };
}

function readTransport(name = 'shm'): ExchangeTransport {
  if (name === 'shm' || name === 'tcp') return name;
  throw new UsageError(
    'INVALID_COMMAND',
    `tributary bench exchange takes shm or tcp for --transport, got ${JSON.stringify(name)}.`,
    { option: 'transport', actual: name },
  );
}

function readPeers(text: string): ExchangePeer[] {
  if (text === 'none') return [];
  return text.split(',').map((name) => {
    const peer = EXCHANGE_PEERS.find((known) => known === name.trim());
    if (peer !== undefined) return peer;
    throw new UsageError(
      'INVALID_COMMAND',
      `--peers has ${JSON.stringify(name)}; give ${EXCHANGE_PEERS.join(', ')} or none.`,
      { option: 'peers', actual: name },
    );
  });
}

function print(result: ExchangeBench, io: CommandIo): void {
  const { machine, workers, servers, transport, placement, memory, notes, skipped } = result;
  io.stdout.write(
    `${machine.processor}, ${machine.cores} cores, Node ${machine.node}; ${workers} workers, ${servers} server(s) (${placement}) over ${transport}\n`,
  );
  io.stdout.write(`${table(tableOf(result))}\n`);
  if (memory) {
    io.stdout.write(
      `Memory, ${memory.threads} thread(s), ${megabytes(memory.bytes)}: ${gigabytes(memory.before)} GB/s before, ${gigabytes(memory.after)} GB/s after; ${String(result.configuration['bytes'])}.\n`,
    );
  }
  for (const note of notes) io.stdout.write(`${note}\n`);
  for (const note of skipped) io.stderr.write(`Left out: ${note}\n`);
}

function tableOf({ cases }: ExchangeBench): string[][] {
  if (cases.some(isRows)) {
    return [
      ['table', 'rows touched', 'exchanges/s by rows', 'dense', 'ratio'],
      ...cases
        .filter(isRows)
        .map((one) => [
          `${thousands(one.tableRows)} x ${one.rowLength}`,
          thousands(one.rows),
          rate(one.exchangesPerSec),
          rate(one.denseExchangesPerSec),
          times(one.ratioDense),
        ]),
    ];
  }
  const [neighbour] = cases.filter(isNeighbour);
  if (neighbour) {
    return [
      ['model', 'exchanges/s beside an idle neighbour', 'beside a hostile one', 'ratio'],
      [
        ...[neighbour.model, rate(neighbour.aloneExchangesPerSec), rate(neighbour.exchangesPerSec)],
        percent(neighbour.ratioAlone),
      ],
    ];
  }
  // Peers that were not measured get no columns.
  const has = (peer: 'ratioOpenmpi' | 'ratioGloo'): boolean => cases.some((one) => one[peer] !== null);
  const [openMpi, gloo] = [has('ratioOpenmpi'), has('ratioGloo')];
  return [
    [
      ...['model', 'chunk', 'aggregation', 'tenants', 'exchanges/s', 'GB/s', 'of memory'],
      ...(openMpi ? ['Open MPI', 'ratio'] : []),
      ...(gloo ? ['gloo', 'ratio'] : []),
    ],
    ...cases.map((one) => [
      ...[one.model, formatBytes(one.chunkBytes), isAssignment(one) ? one.assignment : one.aggregation],
      ...[String(one.tenants), rate(one.exchangesPerSec), gigabytes(one.bytesPerSec)],
      one.memoryShare === null ? '-' : percent(one.memoryShare),
      ...(openMpi ? [rate(one.openmpiExchangesPerSec), times(one.ratioOpenmpi)] : []),
      ...(gloo ? [rate(one.glooExchangesPerSec), times(one.ratioGloo)] : []),
    ]),
  ];
}

/** Lines for the sweeps that have an axis, bars for everything else. */
function drawn(result: ExchangeBench): string {
  const { model, sweep, cases } = result;
  if (sweep === 'chunks') return chunkSweepChart(cases, result);
  if (sweep === 'tenants') return tenantsChart(cases, result);
  const by = result.transport === 'shm' ? 'shared memory' : 'TCP on loopback';
  const subtitle = `${result.workers} workers, ${by}; longer is better; ${result.machine.processor}, ${result.date.slice(0, 10)}`;
  if (sweep === 'rows') {
    const [first] = cases.filter(isRows);
    const title = `Exchanges of ${thousands(first!.rows)} rows of a table against dense exchanges`;
    return barChart(rowBars(cases), { title, subtitle, reference: 1 });
  }
  if (sweep === 'neighbour') {
    const [one] = cases.filter(isNeighbour);
    const bars = [
      bar('idle neighbour', one!.aloneExchangesPerSec),
      bar('hostile neighbour', one!.exchangesPerSec),
    ];
    const title = `Exchanges of ${model} per second beside another tenant`;
    return barChart(bars, { title, subtitle, reference: one!.aloneExchangesPerSec });
  }
  const bars = sweep === 'assignment' ? assignmentBars(cases) : peerBars(cases);
  const title = `Exchanges of ${model} per second`;
  return barChart(bars, { title, subtitle, reference: cases[0]!.exchangesPerSec });
}

function peerBars([ours]: readonly ExchangeCase[]): Bar[] {
  const peers = [
    ['Open MPI', ours!.openmpiExchangesPerSec, ours!.ratioOpenmpi],
    ['gloo', ours!.glooExchangesPerSec, ours!.ratioGloo],
  ] as const;
  return [
    bar('Tributary', ours!.exchangesPerSec),
    ...peers.flatMap(([name, value, ratio]) =>
      value === null ? [] : [bar(name, value, `, Tributary is ${ratio!.toFixed(2)}x`)],
    ),
  ];
}

function assignmentBars(cases: readonly ExchangeCase[]): Bar[] {
  return cases.filter(isAssignment).map((one) => bar(one.assignment, one.exchangesPerSec));
}

/** How many times faster rows are. */
function rowBars(cases: readonly ExchangeCase[]): Bar[] {
  return cases.filter(isRows).map((one) => ({
    label: `${thousands(one.tableRows)} x ${one.rowLength}`,
    value: one.ratioDense,
    note: `${times(one.ratioDense)} (${rate(one.exchangesPerSec)} to ${rate(one.denseExchangesPerSec)}/s)`,
  }));
}

function bar(label: string, value: number, more = ''): Bar {
  return { label, value, note: `${rate(value)}${more}` };
}

function isRows(one: ExchangeCase): one is RowsCase {
  return 'tableRows' in one;
}

function isNeighbour(one: ExchangeCase): one is NeighbourCase {
  return 'ratioAlone' in one;
}

function isAssignment(one: ExchangeCase): one is AssignmentCase {
  return 'assignment' in one;
}

const rate = (value: number | null): string =>
  value === null ? '-' : value < 100 ? value.toFixed(1) : thousands(value);
const times = (value: number | null): string => (value === null ? '-' : `${value.toFixed(2)}x`);
const gigabytes = (bytes: number): string => (bytes / 1e9).toFixed(1);
const megabytes = (bytes: number): string => `${(bytes / 1e6).toFixed(1)} MB`;
