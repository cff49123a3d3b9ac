/**
 * A step that all workers make together: this worker's share of the batch, cut where the plan says, and the exchange, which goes on
 * meanwhile. Makes the plan when the first batch is there, and says after a hundred steps how it goes.
 * Invariants: all workers do the same at the same step; after `compute` all know the same loss and gradients.
 */
import type { CommunicationThread } from '../communication/index.ts';
import type { Part } from '../data/index.ts';
import { tellAll, type Exchange } from '../exchange/index.ts';
import { namesInShort, type ExchangePlan, type Merging, type StepProgram } from '../plan/index.ts';
import type { GradientsElsewhere, Replica } from '../runtime/index.ts';
import { AgreedStop } from './agreed-stop.ts';
import type { JointStep, StepOutcome, StepShare } from './joint-step.ts';
import { groupsOf, planned, type PlannedRun } from './plan-run.ts';
import { compareReplicas } from './replica-check.ts';
import { betterRoutesText, replan, StepTimes } from './replanning.ts';
import { compareProgram } from './run-program.ts';
import { runReport } from './run-report.ts';
import type { Trace } from './trace.ts';

export interface PlannedExchange extends PlannedRun {
  readonly exchange: Exchange;
}

export interface SharedStepOptions {
  readonly thread: CommunicationThread;
  readonly replica: Replica;
  /** The first batch lies in the replica's inputs. */
  readonly planExchange: (samples: ArrayLike<number>) => Promise<PlannedExchange>;
  readonly programOf: (run: PlannedRun) => StepProgram;
  /** Takes lines for people, on the first worker. */
  readonly log: (line: string) => void;
  /** Between two comparisons of the replicas. */
  readonly compareEverySteps: number;
  /** Whether gradients of each kind are averaged over the workers, not added. */
  readonly averages: { readonly dense: boolean; readonly sparse: boolean };
  /** Samples of a batch, over all workers. */
  readonly batchSize: number;
  /** Receives trace events. Default: none. */
  readonly trace?: Trace | undefined;
}

interface SharedGradients {
  /** Of the whole batch. */
  readonly loss: number;
  readonly elsewhere: GradientsElsewhere;
  /** Forward and backward pass of this worker's share. */
  readonly computeMs: number;
  /** For gradients of others, behind the backward pass. */
  readonly waitMs: number;
}

const REPORT_AFTER_STEPS = 100;
/** Between two looks at whether the plan still fits. */
const REPLAN_EVERY_STEPS = 200;
/** The first ones are slower. */
const WARM_UP_STEPS = 10;

export class SharedStep implements JointStep {
  readonly #options: SharedStepOptions;
  #planned: PlannedExchange | undefined;
  #program: StepProgram | undefined;
  #stop: AgreedStop | undefined;
  #steps = 0;
  readonly #sums = { computeMs: 0, waitMs: 0 };
  #countedSinceMs = 0;
  readonly #times = new StepTimes();
  /** Of the segments of the backward pass, in the trace. */
  #segmentNames: readonly string[] = [];

  constructor(options: SharedStepOptions) {
    this.#options = options;
  }

  /** From the first step on. */
  get plan(): ExchangePlan | undefined {
    return this.#planned?.plan;
  }

  /** From the first step on. */
  get program(): StepProgram | undefined {
    return this.#program;
  }

  get stepSamples(): number {
    return this.#options.batchSize;
  }

  get part(): Part {
    const { rank: index, size: count } = this.#options.thread.world;
    return { index, count };
  }

  get together(): JointStep['together'] {
    const { id: group, size, rank: index } = this.#options.thread.world;
    return { group, size, index };
  }

  begin(): Promise<void> {
    this.#stop = undefined;
    return Promise.resolve();
  }

  async step(
    { samples, batchSize, isShared, lr }: StepShare,
    checkLoss: (loss: number) => void,
  ): Promise<StepOutcome> {
    const { replica, trace } = this.#options;
    const total = isShared ? batchSize : this.#samplesOfAll(batchSize);
    const { loss, elsewhere, computeMs, waitMs } = await this.#compute(samples, total);
    checkLoss(loss);
    const scale = replica.update(lr, elsewhere, trace?.lap);
    this.#planned!.exchange.apply({ scale, lr });
    return { loss, samples: total, computeMs, waitMs };
  }

  isStopped(signal: AbortSignal | undefined): boolean {
    if (!signal) return false;
    this.#stop ??= new AgreedStop(this.#options.thread, () => signal.aborted);
    return this.#stop.isDue();
  }

  /** All workers end after the same step. */
  async end(): Promise<void> {}

  async leaveRun(): Promise<void> {}

  async withValues<T>(work: () => T | Promise<T>, { withState = false } = {}): Promise<T> {
    const exchange = this.#planned?.exchange;
    await exchange?.fetchAll();
    if (withState) await exchange?.fetchState();
    return work();
  }

  async fetchAll(): Promise<void> {
    await this.withValues(() => undefined, { withState: true });
  }

  /** `samples` are those of this worker's share, which lie in the replica's inputs; `total` counts those of all workers. */
  async #compute(samples: ArrayLike<number>, total: number): Promise<SharedGradients> {
    const { thread, replica, compareEverySteps, trace } = this.#options;
    replica.findRows(samples);
    this.#planned ??= await this.#planFirst(samples);
    if (this.#steps > 0 && this.#steps % REPLAN_EVERY_STEPS === 0) this.#planAnew(this.#planned);
    const { plan, exchange } = this.#planned;
    if (replica.step > 0 && replica.step % compareEverySteps === 0) {
      compareReplicas(thread, replica, plan);
      trace?.lap('check');
    }
    if (this.#steps === WARM_UP_STEPS) this.#countedSinceMs = performance.now();
    if (this.#steps === REPORT_AFTER_STEPS) this.#report(plan);
    await exchange.prepare(samples.length);
    if (trace) this.#tracePreparation(trace, exchange);
    const startedMs = performance.now();
    exchange.begin(samples.length);
    if (samples.length > 0) {
      for (const group of replica.gradientGroups(samples, trace?.lap)) {
        this.#multiply(exchange.groups[group]!, total / samples.length);
        this.#times.addRows(exchange.groups[group]!, replica.memory.gradients);
        exchange.start(group);
        trace?.lap('backward', this.#segmentNames[group]);
      }
    } else {
      replica.clearGradients();
      exchange.groups.forEach((_, group) => exchange.start(group));
    }
    const computedMs = performance.now();
    const elsewhere = await exchange.finish();
    trace?.lap('wait');
    replica.takeStates(trace?.lap);
    this.#times.add(computedMs - startedMs, exchange.lastMessages);
    const [computeMs, waitMs] = [computedMs - startedMs, performance.now() - computedMs];
    if (this.#steps++ >= WARM_UP_STEPS) {
      this.#sums.computeMs += computeMs;
      this.#sums.waitMs += waitMs;
    }
    return { loss: replica.memory.loss.view[0]!, elsewhere, computeMs, waitMs };
  }

  /**
   * Brings the rows of tables that are on servers only for an evaluation of the batch in the
   * replica's inputs.
   */
  async prepareRows(samples: ArrayLike<number>): Promise<void> {
    this.#options.replica.findRows(samples);
    if (this.#planned) await this.#planned.exchange.prepareRows(samples.length);
    else this.#options.replica.fillRows();
  }

  /**
   * Those that are on servers only. Undefined before the first step: then they are nowhere yet, or
   * in a checkpoint.
   */
  get remoteTables(): Exchange['remoteTables'] | undefined {
    return this.#planned?.exchange.remoteTables;
  }

  async close(): Promise<void> {
    await this.#planned?.exchange.close();
  }

  /** Without waiting for the others, as after an error. */
  async abort(): Promise<void> {
    await this.#planned?.exchange.abort();
  }

  /** Other groups from the next step on, by a merging of one's choice; all workers call it between the same steps. */
  regroup(merging: Merging): ExchangePlan {
    const { thread } = this.#options;
    return this.#take(planned(thread, { ...this.#planned!.input, merging }));
  }

  /** In batches of a dataset that is not shared out, which are each worker's own. */
  #samplesOfAll(own: number): number {
    const all = tellAll(this.#options.thread, [own], 'samples in the batches of all workers');
    return all.reduce((sum, [samples]) => sum + samples!, 0);
  }

  async #planFirst(samples: ArrayLike<number>): Promise<PlannedExchange> {
    const { replica, planExchange, trace } = this.#options;
    // What is timed needs numbers, whichever they are.
    replica.fillRows(true);
    const run = await planExchange(samples);
    this.#takeProgram(run);
    if (!trace) return run;
    // Not before: the plan is that of a run without a trace.
    replica.cutForward();
    run.exchange.traceTo(trace.message);
    this.#nameSegments(run.exchange.groups);
    trace.lap('plan');
    return run;
  }

  #planAnew(before: PlannedExchange): void {
    const { thread, log, trace } = this.#options;
    const next = replan(thread, before, this.#times);
    trace?.lap('plan');
    if (!next) return;
    this.#take(next);
    if (thread.world.rank !== 0) return;
    const [now, then] = [next.plan.groups.length, before.plan.groups.length];
    const messages = `${now === then ? 'still ' : ''}${now} message${now === 1 ? '' : 's'} a step${now === then ? '' : ` instead of ${then}`}`;
    log(
      `planned anew after ${this.#steps} steps, as times have changed: ${messages}, ${next.plan.iterationMs.toPrecision(3)} ms predicted instead of ${before.plan.iterationMs.toPrecision(3)} ms`,
    );
    if (next.betterRoutes) log(betterRoutesText(next.betterRoutes, next.plan));
  }

  #take(run: PlannedRun): ExchangePlan {
    const { exchange } = this.#planned!;
    this.#planned = { ...run, exchange };
    this.#takeProgram(run);
    this.#times.forget();
    const groups = groupsOf(run.plan);
    // What is cut alike need not be compiled again.
    if (JSON.stringify(groups) === JSON.stringify(exchange.groups)) return run.plan;
    exchange.setGroups(groups);
    this.#options.replica.setGroups(groups);
    if (this.#options.trace) this.#nameSegments(groups);
    return run.plan;
  }

  #takeProgram(run: PlannedRun): void {
    const { thread, programOf } = this.#options;
    this.#program = programOf(run);
    compareProgram(thread, this.#program);
  }

  /** The average by samples, of gradients that were divided by the share that counts for them, is their sum. */
  #multiply(names: readonly string[], factor: number): void {
    const { replica, averages } = this.#options;
    if (averages.dense && averages.sparse) return;
    for (const name of names) {
      const place = replica.memory.gradients.get(name)!;
      if (averages[place.kind]) continue;
      const values =
        place.kind === 'dense' ? place.region : place.rows.slice(0, place.count * place.rowLength);
      if (values.length > 0) replica.kernels.scale(values, factor);
    }
  }

  #nameSegments(groups: readonly (readonly string[])[]): void {
    const all = [...this.#options.replica.memory.parameters.keys()];
    // A group without gradients is the forward pass.
    this.#segmentNames = groups.map((names) => `backward ${namesInShort(names, all)}`.trimEnd());
  }

  #tracePreparation(trace: Trace, { fetches }: Exchange): void {
    // The first step waits for no update.
    if (fetches && (fetches !== 'wait' || this.#steps > 0)) trace.lap(fetches);
    else trace.skip();
  }

  #report(plan: ExchangePlan): void {
    const { thread, log } = this.#options;
    const steps = REPORT_AFTER_STEPS - WARM_UP_STEPS;
    const { computeMs, waitMs } = this.#sums;
    const own = [performance.now() - this.#countedSinceMs, computeMs, waitMs].map((ms) => ms / steps);
    const paces = tellAll(thread, own, 'how fast each worker is').map((numbers) => {
      const [stepMs, ownComputeMs, ownWaitMs] = numbers as [number, number, number];
      return { stepMs, computeMs: ownComputeMs, waitMs: ownWaitMs };
    });
    if (thread.world.rank === 0) for (const line of runReport(plan, steps, paces)) log(line);
  }
}
