/**
 * Many simulated runs, one seed each, in a space of its own; the table of faults, and the trace of
 * the run that failed. Invariant: a seed gives the same run, event by event, whichever runs came
 * before it.
 */
import { Kernels } from '../../src/kernels/index.ts';
import { SharedSpace } from '../../src/memory/index.ts';
import { countName, FAULTS, POINTS, RUN_KINDS } from './faults.ts';
import type { FaultCounts, RunKind } from './faults.ts';
import { CLIENT_SIZES, CLIENT_STEPS, CLIENTS, run } from './run.ts';
import type { RunResult } from './run.ts';
import type { TenantPlan } from './tenant.ts';

export interface SimulateOptions {
  readonly seeds: number;
  readonly from: number;
  /** Whether traces are printed, of runs that did not fail as well. Default false. */
  readonly isVerbose?: boolean | undefined;
  /** Whether not even the trace of a run that failed is printed. Default false. */
  readonly isQuiet?: boolean | undefined;
  /** Whether it goes on behind a run that failed, a line each. Default false. */
  readonly goesOn?: boolean | undefined;
  readonly print: (line: string) => void;
}

/** What came of some seeds; plain data, so that it can be sent between processes. */
export interface Summary {
  readonly seeds: number;
  readonly failed: number;
  readonly events: number;
  readonly virtualMs: number;
  /** Of all runs, the fewest faults that one had. */
  readonly fewest: number;
  /** By fault and point, how often it hit. */
  readonly counts: readonly (readonly [name: string, count: number])[];
}

export async function simulate(options: SimulateOptions): Promise<Summary> {
  const { seeds, from, isVerbose, isQuiet, goesOn, print } = options;
  const counts: FaultCounts = new Map();
  let [done, events, virtualMs, fewest, failed] = [0, 0, 0, Infinity, 0];
  const hashes = await undisturbedHashes();
  if (!(hashes instanceof Map)) {
    if (!isQuiet) printTrace(hashes, print);
    print(`seed ${hashes.seed}: without any fault: ${hashes.violation}`);
    return { seeds: 1, failed: 1, events: hashes.events, virtualMs: 0, fewest: 0, counts: [] };
  }
  const expectedHash = (plan: TenantPlan): string => hashes.get(hashKey(plan))!;
  for (let i = 0; i < seeds; i++) {
    const result = await run({ seed: from + i, kernels: newKernels(), counts, expectedHash });
    done++;
    events += result.events;
    virtualMs += result.virtualMs;
    fewest = Math.min(fewest, result.hits);
    if (isVerbose || (result.violation !== undefined && !goesOn && !isQuiet)) printTrace(result, print);
    if (result.violation === undefined) continue;
    failed++;
    print(`seed ${result.seed}: ${result.violation}`);
    print(`npm run sim -- --seeds 1 --from ${result.seed} repeats this run`);
    if (!goesOn) break;
  }
  return { seeds: done, failed, events, virtualMs, fewest, counts: [...counts] };
}

export function addUp(parts: readonly Summary[]): Summary {
  const counts: FaultCounts = new Map();
  for (const part of parts) {
    for (const [name, count] of part.counts) counts.set(name, (counts.get(name) ?? 0) + count);
  }
  const sum = (value: (part: Summary) => number) => parts.reduce((all, part) => all + value(part), 0);
  return {
    ...{ seeds: sum(({ seeds }) => seeds), failed: sum(({ failed }) => failed), counts: [...counts] },
    ...{ events: sum(({ events }) => events), virtualMs: sum(({ virtualMs }) => virtualMs) },
    fewest: Math.min(...parts.map(({ fewest }) => fewest)),
  };
}

export function printSummary(summary: Summary, seconds: number, print: (line: string) => void): void {
  const { seeds, failed, events, virtualMs, fewest, counts } = summary;
  for (const kind of RUN_KINDS) printCounts(kind, new Map(counts), print);
  print(
    `${seeds} seeds, ${failed} with a finding, at least ${fewest} faults in each; ` +
      `${events} events and ${Math.round(virtualMs / 1000)} s of virtual time in ${seconds.toFixed(1)} s`,
  );
}

/** The code of the kernels is compiled once; a space takes a tenth of a millisecond. */
function newKernels(): Kernels {
  return Kernels.create(SharedSpace.create({ maxBytes: 2 ** 28, names: 'within' }));
}

/** What undisturbed runs of every plan in lock step come to, or the first that does not come to anything. */
async function undisturbedHashes(): Promise<Map<string, string> | RunResult> {
  const hashes = new Map<string, string>();
  const alone = (['synchronous', 'held'] as const).flatMap((kind) =>
    [2, 3].flatMap((workers) => [20, 21].map((steps) => ({ kind, workers, steps, clientSize: 1 }))),
  );
  const inClients = CLIENT_SIZES.map((clientSize) => ({
    ...{ kind: 'synchronous' as const, workers: CLIENTS * clientSize, steps: CLIENT_STEPS, clientSize },
  }));
  for (const one of [...alone, ...inClients]) {
    const plan: TenantPlan = {
      ...{ ...one, namespace: 'undisturbed', checkpointEvery: 5 },
      ...{ sharedMemory: false, servers: 1, isKept: true, isOnDisk: false, goesOn: false },
    };
    const kernels = newKernels();
    const result = await run({ seed: 1, kernels, counts: new Map(), faults: 0, plans: [plan] });
    if (result.violation !== undefined) return result;
    hashes.set(hashKey(plan), result.tenants[0]!.hashes.get(0)!);
  }
  return hashes;
}

function hashKey({ kind, workers, clientSize, steps }: TenantPlan): string {
  return `${kind} ${workers} ${clientSize} ${steps}`;
}

function printTrace({ seed, trace, tenants }: RunResult, print: (line: string) => void): void {
  print(`seed ${seed}: ${tenants.map(({ plan }) => JSON.stringify(plan)).join(' ')}`);
  for (const { atMs, who, what } of trace)
    print(`${atMs.toFixed(3).padStart(12)}  ${who.padEnd(12)} ${what}`);
}

function printCounts(kind: RunKind, counts: FaultCounts, print: (line: string) => void): void {
  const all = kind === 'with clients' ? POINTS : POINTS.filter((point) => point !== 'mate');
  print([kind.padEnd(18), ...all.map((point) => point.padStart(16))].join(''));
  for (const [fault, points] of Object.entries(FAULTS)) {
    const cells = all.map((point) =>
      (points as readonly string[]).includes(point)
        ? String(counts.get(countName(kind, fault, point)) ?? 0)
        : '',
    );
    print([fault.padEnd(18), ...cells.map((cell) => cell.padStart(16))].join(''));
  }
}
