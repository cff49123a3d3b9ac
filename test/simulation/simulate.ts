/**
 * Many simulated runs, one seed each, in a space of its own; the table of faults, and the trace of the run that failed. Invariant: a seed gives the same run, event by event, whichever runs came before it.
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
  readonly isVerbose?: boolean | undefined;
  /** Whether it goes on behind a run that failed, a line each. Default false. */
  readonly goesOn?: boolean | undefined;
  readonly print: (line: string) => void;
}

/** True if everything held. */
export async function simulate({ seeds, from, isVerbose, goesOn, print }: SimulateOptions): Promise<boolean> {
  const counts: FaultCounts = new Map();
  const hashes = new Map<string, string>();
  const startedMs = performance.now();
  let [events, virtualMs, fewest, failed] = [0, 0, Infinity, 0];
  for (let i = 0; i < seeds; i++) {
    const expectedHash = (plan: TenantPlan): string => hashes.get(hashKey(plan))!;
    await learnHashes(hashes);
    const result = await run({ seed: from + i, kernels: newKernels(), counts, expectedHash });
    events += result.events;
    virtualMs += result.virtualMs;
    fewest = Math.min(fewest, result.hits);
    if (isVerbose) printTrace(result, print);
    if (result.violation === undefined) continue;
    if (goesOn) {
      failed++;
      print(`seed ${result.seed}: ${result.violation.slice(0, 300)}`);
      continue;
    }
    if (!isVerbose) printTrace(result, print);
    print(`seed ${result.seed}: ${result.violation}`);
    print(`npm run sim -- --seeds 1 --from ${result.seed} repeats this run`);
    return false;
  }
  const seconds = (performance.now() - startedMs) / 1000;
  printCounts(counts, print);
  print(
    `${seeds} seeds from ${from}: ${failed === 0 ? 'nothing found' : `${failed} failed`}; ${events} events, ${Math.round(virtualMs / 1000)} s of virtual time in ${seconds.toFixed(1)} s; ` +
      `at least ${fewest} faults in each`,
  );
  return failed === 0;
}

/** The code of the kernels is compiled once; a space takes a tenth of a millisecond. */
function newKernels(): Kernels {
  return Kernels.create(SharedSpace.create({ maxBytes: 2 ** 28, names: 'within' }));
}

/** What undisturbed runs of every plan in lock step come to. */
async function learnHashes(hashes: Map<string, string>): Promise<void> {
  if (hashes.size > 0) return;
  for (const kind of ['synchronous', 'held'] as const) {
    for (const workers of [2, 3]) {
      for (const steps of [20, 24]) {
        const plan: TenantPlan = {
          ...{ namespace: 'undisturbed', kind, workers, steps, checkpointEvery: 5 },
          ...{ sharedMemory: false, isOnDisk: false },
        };
        const { tenants, violation } = await run({
          seed: 1,
          kernels: newKernels(),
          counts: new Map(),
          faults: 0,
          plans: [plan],
        });
        if (violation !== undefined) throw new Error(`an undisturbed run failed: ${violation}`);
        hashes.set(hashKey(plan), tenants[0]!.hashes.get(0)!);
      }
    }
  }
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
