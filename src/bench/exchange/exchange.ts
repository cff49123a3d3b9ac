/**
 * `bench exchange`: workers without any computing exchange the gradients of a real model for new weights, through our servers
 * and by peers that do the same work, in one run. Checks the options and tells which of the measurements is wanted; they
 * are in measure-*.ts. Invariant: a figure counts only if the weights behind it were right, bit by bit.
 */
import { mkdtemp, rm } from 'node:fs/promises';
import { cpus, tmpdir } from 'node:os';
import { join } from 'node:path';
import { UsageError } from '../../base/index.ts';
import type { Aggregation } from '../../server/index.ts';
import { describeMachine } from '../machine.ts';
import { BYTES_FORMULA, ROWS_FORMULA, SWEEPS } from './exchange-case.ts';
import type { ExchangeBench, Sweep } from './exchange-case.ts';
import { LEARNING_RATE, MOMENTUM } from './known-exchange.ts';
import { measureAssignmentCases } from './measure-assignment.ts';
import { measureModel } from './measure-model.ts';
import { measureNeighbour } from './measure-neighbour.ts';
import { measureRows } from './measure-rows.ts';
import type { Measured, Setting, TableSize } from './measurement.ts';
import { exchangeModels } from './models.ts';
import { isModelName, parseModel } from './peer-commands.ts';
import type { ExchangeTransport } from './peer-commands.ts';
import { EXCHANGE_PEERS } from './peer-sides.ts';
import type { ExchangePeer } from './peer-sides.ts';
import { checkCount, describePlacement, planPlacement } from './placement.ts';
import type { Placement } from './placement.ts';

export interface ExchangeBenchOptions {
  /** A name of `exchangeModels`, or lengths of tensors: '1000,64,64'. Default 'resnet18'. */
  readonly model?: string | undefined;
  /** Processes that exchange. Default 2. */
  readonly workers?: number | undefined;
  /** Servers of ours. Default: what the placement has. */
  readonly servers?: number | undefined;
  /** Groups of workers that reduce among themselves and face the servers as one. Default: as many as workers. */
  readonly clients?: number | undefined;
  /**
   * Whether clients reduce among themselves even where their workers and all servers share memory. Default false: there the
   * workers of a client face the servers by themselves.
   */
  readonly unfused?: boolean | undefined;
  /** Models that are exchanged at the same time, each with its own service. Default 1. */
  readonly tenants?: number | undefined;
  /** Default 'shm'. */
  readonly transport?: ExchangeTransport | undefined;
  /** Default NCC by shared memory, CS by TCP. */
  readonly placement?: Placement | undefined;
  /** Threads of each server. Default: the cores of the machine shared among the servers; 1 for CS. */
  readonly cores?: number | undefined;
  /** Default 'tall'. */
  readonly aggregation?: Aggregation | undefined;
  /** Longest piece that is updated at once, in bytes, a multiple of 64. Default 32 KB. */
  readonly chunkBytes?: number | undefined;
  /** What to vary, ours only. Default: nothing. */
  readonly sweep?: Sweep | undefined;
  /** Rows of a table that each worker touches in a step, against dense exchanges. Default: no table. */
  readonly rows?: number | undefined;
  /** Rows of that table. Default 100,000 and 800,000, one after the other. */
  readonly tableRows?: number | undefined;
  /** Elements of a row of that table. Default 128. */
  readonly rowLength?: number | undefined;
  /** Beside another tenant on the same servers that means badly, against beside one that is idle. Default false. */
  readonly neighbour?: boolean | undefined;
  /** To compare with. Default all; none in a sweep. */
  readonly peers?: readonly ExchangePeer[] | undefined;
  /** Alternating rounds, at least 5. Default 7. */
  readonly rounds?: number | undefined;
  /** About how long a turn of one side takes, in milliseconds; it has at least 3 exchanges. Default 300. */
  readonly turnMs?: number | undefined;
  /** Environment for all processes. */
  readonly env: Readonly<Record<string, string | undefined>>;
  readonly signal?: AbortSignal | undefined;
  /** What is going on, in words. */
  readonly onProgress?: ((message: string) => void) | undefined;
}

const LEAST_ROUNDS = 5;
const DEFAULT_CHUNK_BYTES = 32 * 1024;
const DEFAULT_TABLE_ROWS: readonly number[] = [100_000, 800_000];
const DEFAULT_ROW_LENGTH = 128;
const MAX_WORKERS = 256;
const MAX_TENANTS = 64;

export async function benchExchange(options: ExchangeBenchOptions): Promise<ExchangeBench> {
  const folder = await mkdtemp(join(tmpdir(), 'tributary-bench-'));
  try {
    const setting = settingOf(options, folder);
    const { sweep = null, rows } = options;
    const tables = tablesOf(options);
    const measured = options.neighbour
      ? await measureNeighbour(setting)
      : await measure(setting, sweep, tables, rows);
    return {
      bench: 'exchange',
      date: new Date().toISOString(),
      machine: describeMachine(),
      model: rows === undefined ? setting.modelName : 'table',
      workers: setting.workers,
      servers: setting.placement.servers,
      transport: setting.transport,
      placement: setting.placement.placement,
      sweep: options.neighbour ? 'neighbour' : rows === undefined ? sweep : 'rows',
      memory: measured.memory,
      configuration: configurationOf(setting, measured, rows),
      skipped: measured.skipped,
      notes: notesOn(setting, measured),
      cases: measured.cases,
    };
  } finally {
    await rm(folder, { recursive: true, force: true });
  }
}

function measure(
  setting: Setting,
  sweep: Sweep | null,
  tables: readonly TableSize[],
  rows: number | undefined,
): Promise<Measured> {
  if (rows !== undefined) return measureRows(setting, tables, rows);
  return sweep === 'assignment' ? measureAssignmentCases(setting) : measureModel(setting, sweep);
}

function settingOf(options: ExchangeBenchOptions, folder: string): Setting {
  const { model = 'resnet18', workers = 2, transport = 'shm', tenants = 1, clients = workers } = options;
  const { chunkBytes = DEFAULT_CHUNK_BYTES, aggregation = 'tall', turnMs = 300, sweep } = options;
  checkCount('workers', workers, MAX_WORKERS);
  checkCount('tenants', tenants, MAX_TENANTS);
  checkCount('chunkBytes', chunkBytes, 2 ** 30);
  checkCount('turnMs', turnMs, 60_000);
  check(chunkBytes % 64 === 0, `chunkBytes is ${chunkBytes}; give a multiple of 64`);
  check(
    Number.isSafeInteger(clients) && clients >= 1 && clients <= workers,
    `${clients} clients of ${workers} workers cannot be; give 1 to ${workers}`,
  );
  check(
    sweep === undefined || SWEEPS.includes(sweep),
    `there is no sweep '${sweep}'; give one of ${SWEEPS.join(', ')}`,
  );
  check(
    sweep === undefined || options.rows === undefined,
    `a sweep of ${sweep} does not go together with rows; leave one of them out`,
  );
  check(
    !options.neighbour || (sweep === undefined && options.rows === undefined),
    'a neighbour does not go together with a sweep or rows; leave one of them out',
  );
  check(
    sweep !== 'assignment' || clients === workers,
    `a sweep of assignment is within one server and has no clients; leave their number out`,
  );
  const isNamed = isModelName(model);
  const tensors = isNamed
    ? exchangeModels[model]()
    : parseModel(model).map((length, i) => ({ key: `tensor${i}`, length }));
  return {
    ...{ workers, transport, tenants, clients, chunkBytes, aggregation, turnMs, folder, env: options.env },
    isFused: clients < workers && transport === 'shm' && !options.unfused,
    model: isNamed ? model : tensors,
    modelName: isNamed ? model : `${tensors.length} tensors`,
    tensors,
    placement: planPlacement({ ...options, workers, transport }),
    peers: options.peers ?? EXCHANGE_PEERS,
    rounds: Math.max(LEAST_ROUNDS, options.rounds ?? 7),
    signal: options.signal,
    onProgress: options.onProgress ?? (() => undefined),
  };
}

function tablesOf(options: ExchangeBenchOptions): readonly TableSize[] {
  const { rows, tableRows, rowLength = DEFAULT_ROW_LENGTH } = options;
  if (rows === undefined) {
    check(
      tableRows === undefined && options.rowLength === undefined,
      'the size of a table was given, but not how many of its rows are touched; give rows too',
    );
    return [];
  }
  const sizes = tableRows === undefined ? DEFAULT_TABLE_ROWS : [tableRows];
  checkCount('rows', rows, 2 ** 30);
  checkCount('rowLength', rowLength, 2 ** 20);
  for (const size of sizes) checkCount('tableRows', size, 2 ** 30);
  return sizes.map((size) => ({ tableRows: size, rowLength }));
}

function configurationOf(
  setting: Setting,
  measured: Measured,
  rows: number | undefined,
): Readonly<Record<string, unknown>> {
  const { rounds, turnMs, placement } = setting;
  return {
    exchange: `gradients are summed over the workers, SGD with rate ${LEARNING_RATE} and momentum ${MOMENTUM} updates the weights, all workers get them; no computing`,
    check: 'all weights after every turn, bit by bit; sides that are compared end with the same weights',
    bytes: rows === undefined ? BYTES_FORMULA : ROWS_FORMULA,
    memory:
      "the best of 30 rounds of target += a * x by our SIMD kernel on vectors of the model's size by as many threads as servers have, three vectors counted; the mean of before and after",
    statistic: "median of alternating rounds; a turn's time is its slowest worker's",
    rounds,
    turnMs,
    placement: describePlacement(placement),
    transport: describeTransport(setting),
    clients: describeClients(setting),
    tenants:
      'each tenant has its own service on the servers and its own store in every worker process; tenants are exchanged at the same time',
    nonFinite: 'accepted: gradients are not searched for NaN, as the peers do not either',
    sides: measured.sides,
  };
}

function describeClients({ workers, clients, isFused }: Setting): string {
  if (clients === workers) return 'every worker faces the servers by itself';
  if (isFused)
    return `${clients} runs of workers, fused: all workers and servers share memory, so every worker faces the servers by itself, who make the same sum; --unfused reduces inside clients first`;
  return `${clients} runs of workers: inside, gradients are reduced to the first worker by collective, which exchanges the sums with the servers, and new weights are broadcast; a list of keys is one of each`;
}

function describeTransport({ transport, workers, clients, isFused }: Setting): string {
  if (transport === 'tcp')
    return "TCP on loopback, which stands for a network; only the server in a worker's own process shares memory with it";
  return clients === workers || isFused
    ? 'shared memory: servers read gradients where they lie; where one server has the whole model, workers read weights in its memory'
    : 'shared memory: workers of a client read gradients where they lie and write sums where servers read them; weights are copied to every worker';
}

function notesOn({ workers, clients, peers, isFused }: Setting, { skipped, cases }: Measured): string[] {
  const cores = cpus().length;
  const isCompared = cases.some(({ ratioGloo, ratioOpenmpi }) => ratioGloo !== null || ratioOpenmpi !== null);
  return [
    ...(isFused
      ? [
          `The ${clients} client(s) are fused: workers and servers share memory, so workers face the servers directly. --unfused measures clients that reduce first.`,
        ]
      : []),
    ...(workers > cores
      ? [`${workers} workers share ${cores} cores: every side waits for the scheduler of the system.`]
      : []),
    ...(isCompared && skipped.length < peers.length && cases.some(({ tenants }) => tenants > 1)
      ? ['The peers exchange one model at a time: the rate of several tenants is compared with that.']
      : []),
  ];
}

function check(condition: boolean, message: string): void {
  if (!condition) throw new UsageError('INVALID_ARGUMENT', message);
}
