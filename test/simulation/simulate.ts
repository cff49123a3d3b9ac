/**
 * Many simulated runs, one seed each, in a space of its own; the table of faults, and the trace of
 * the run that failed. Invariant: a seed gives the same run, event by event, whichever runs came
 * before it.
 */
import { Kernels } from '../../src/kernels/index.ts';
import { SharedSpace } from '../../src/memory/index.ts';
import { FAULTS, POINTS } from './faults.ts';
import type { FaultCounts } from './faults.ts';
import { run } from './run.ts';
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
  const hashes = await undisturbedHashes();
  const expectedHash = (plan: TenantPlan): string => hashes.get(hashKey(plan))!;
  let [done, events, virtualMs, fewest, failed] = [0, 0, 0, Infinity, 0];
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
  printCounts(new Map(counts), print);
  print(
    `${seeds} seeds, ${failed} with a finding, at least ${fewest} faults in each; ` +
      `${events} events and ${Math.round(virtualMs / 1000)} s of virtual time in ${seconds.toFixed(1)} s`,
  );
}

/** The code of the kernels is compiled once; a space takes a tenth of a millisecond. */
function newKernels(): Kernels {
  return Kernels.create(SharedSpace.create({ maxBytes: 2 ** 28, names: 'within' }));
}

/** What undisturbed runs of every plan in lock step come to. */
async function undisturbedHashes(): Promise<Map<string, string>> {
  const hashes = new Map<string, string>();
  for (const kind of ['synchronous', 'held'] as const) {
    for (const workers of [2, 3]) {
      for (const steps of [20, 21]) {
        const plan: TenantPlan = {
          ...{ namespace: 'undisturbed', kind, workers, steps, checkpointEvery: 5 },
          ...{ sharedMemory: false, servers: 1, isKept: true, isOnDisk: false, goesOn: false },
        };
        const kernels = newKernels();
        const result = await run({ seed: 1, kernels, counts: new Map(), faults: 0, plans: [plan] });
        if (result.violation !== undefined) throw new Error(`an undisturbed run failed: ${result.violation}`);
        hashes.set(hashKey(plan), result.tenants[0]!.hashes.get(0)!);
      }
    }
  }
  return hashes;
}

function hashKey({ kind, workers, steps }: TenantPlan): string {
  return `${kind} ${workers} ${steps}`;
}

function printTrace({ seed, trace, tenants }: RunResult, print: (line: string) => void): void {
  print(`seed ${seed}: ${tenants.map(({ plan }) => JSON.stringify(plan)).join(' ')}`);
  for (const { atMs, who, what } of trace)
    print(`${atMs.toFixed(3).padStart(12)}  ${who.padEnd(12)} ${what}`);
}

function printCounts(counts: FaultCounts, print: (line: string) => void): void {
  print(['fault'.padEnd(18), ...POINTS.map((point) => point.padStart(16))].join(''));
  for (const [fault, points] of Object.entries(FAULTS)) {
    const cells = POINTS.map((point) =>
      (points as readonly string[]).includes(point) ? String(counts.get(`${fault} @ ${point}`) ?? 0) : '',
    );
    print([fault.padEnd(18), ...cells.map((cell) => cell.padStart(16))].join(''));
  }
}
