/**
 * Steps that all workers make together, by the program of a plan: binds this worker's parts to it
 * and walks it. Makes the plan when the first batch is there, and says after a hundred steps how it
 * goes. Invariants: all workers do the same at the same step; all know the same loss and gradients
 * before anything is updated.
 */
import type { CommunicationThread } from '../communication/index.ts';
import type { Part } from '../data/index.ts';
import { NO_TABLES, tellAll, type RemoteTables } from '../exchange/index.ts';
import type { ExchangePlan, Merging, StepProgram } from '../plan/index.ts';
import {
  NOTHING_ELSEWHERE,
  replicaOperations,
  StepContext,
  StepWalk,
  type MovedMessage,
  type Replica,
} from '../runtime/index.ts';
import { AgreedStop } from './agreed-stop.ts';
import type { Asked, JointStep, StepOutcome, StepShare } from './joint-step.ts';
import type { PlannedExchange } from './open-exchange.ts';
import { groupsOf, planned, type PlannedRun } from './plan-run.ts';
import { compareReplicas } from './replica-check.ts';
import { betterRoutesText, replan, StepTimes } from './replanning.ts';
import { compareProgram, type OpenRun } from './run-program.ts';
import { runReport } from './run-report.ts';
import type { Trace } from './trace.ts';

export interface SharedStepOptions {
  readonly thread: CommunicationThread;
  readonly replica: Replica;
  /** The first batch lies in the replica's inputs. */
  readonly planExchange: (samples: ArrayLike<number>, step: StepContext) => Promise<PlannedExchange>;
  readonly programOf: (run: OpenRun) => StepProgram;
  /** Takes lines for people, on the first worker. */
  readonly log: (line: string) => void;
  /** Whether gradients of each kind are averaged over the workers, not added. */
  readonly averages: { readonly dense: boolean; readonly sparse: boolean };
  /** Samples of a batch, over all workers. */
  readonly batchSize: number;
  /** Receives trace events. Default: none. */
  readonly trace?: Trace | undefined;
}

const REPORT_AFTER_STEPS = 100;
/** Between two looks at whether the plan still fits. */
const REPLAN_EVERY_STEPS = 200;
/** The first ones are slower. */
const WARM_UP_STEPS = 10;

export class SharedStep implements JointStep {
  readonly #options: SharedStepOptions;
  readonly #context = new StepContext();
  #planned: PlannedExchange | undefined;
  #program: StepProgram | undefined;
  #walk: StepWalk | undefined;
  /** That of the program before, until all that it has started has ended. */
  #before: StepWalk | undefined;
  #stop: AgreedStop | undefined;
  #steps = 0;
  readonly #sums = { computeMs: 0, waitMs: 0 };
  #countedSinceMs = 0;
  readonly #times = new StepTimes();
  /** Gradients that have travelled in this step. */
  #messages: MovedMessage[] = [];
  /** Of this step. */
  #load: (() => StepShare) | undefined;
  #total = 0;
  /** The first batch is there, which the plan was made with. */
  #isLoaded = false;
  #checkLoss: (loss: number) => void = () => undefined;

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

  async step(load: () => StepShare, checkLoss: (loss: number) => void): Promise<StepOutcome> {
    this.#checkLoss = checkLoss;
    this.#load = load;
    this.#messages = [];
    if (this.#steps > 0 && this.#steps % REPLAN_EVERY_STEPS === 0) this.#planAnew(this.#planned!);
    const walk = this.#walk ?? (await this.#begin());
    if (this.#before) await this.#before.settle();
    this.#before = undefined;
    if (this.#steps === WARM_UP_STEPS) this.#countedSinceMs = performance.now();
    if (this.#steps === REPORT_AFTER_STEPS) this.#report(this.#planned!.plan);
    const walked = walk.step();
    if (walked) await walked;
    const { startedMs, computedMs, combinedMs } = this.#context;
    const [computeMs, waitMs] = [computedMs - startedMs, combinedMs - computedMs];
    this.#times.add(computeMs, this.#messages);
    if (this.#steps++ >= WARM_UP_STEPS) {
      this.#sums.computeMs += computeMs;
      this.#sums.waitMs += waitMs;
    }
    const loss = this.#options.replica.memory.loss.view[0]!;
    return { loss, samples: this.#total, computeMs, waitMs };
  }

  isStopped(signal: AbortSignal | undefined): boolean {
    if (!signal) return false;
    this.#stop ??= new AgreedStop(this.#options.thread, () => signal.aborted);
    return this.#stop.isDue();
  }

  /** All workers end after the same step. */
  async end(): Promise<void> {}

  async leaveRun(): Promise<void> {}

  async withValues<T>(
    work: () => T | Promise<T>,
    { withState = false, average }: Parameters<JointStep['withValues']>[1] = {},
  ): Promise<T> {
    const servers = this.#planned?.servers;
    await this.#settled();
    await servers?.fetchAll(average);
    if (withState) await servers?.fetchState();
    return work();
  }

  isDue(kind: Asked, isEpochEnd: boolean): boolean {
    return this.#walk?.isDue(kind, isEpochEnd) ?? isEpochEnd;
  }

  async call<T>(kind: Asked, work: () => T | Promise<T>): Promise<T> {
    if (this.#walk) return this.#walk.call(kind, work);
    const result = await work();
    this.#options.trace?.lap(kind);
    return result;
  }

  async fetchAll(): Promise<void> {
    await this.withValues(() => undefined, { withState: true });
  }

  /**
   * Brings the rows of tables that are on servers only for an evaluation of the batch in the
   * replica's inputs.
   */
  async prepareRows(samples: ArrayLike<number>, average?: string): Promise<void> {
    this.#options.replica.findRows(samples);
    if (this.#planned) await this.#planned.servers?.prepareRows(samples.length, average);
    else this.#options.replica.fillRows();
  }

  /**
   * Those that are on servers only. Undefined before the first step: then they are nowhere yet, or
   * in a checkpoint.
   */
  get remoteTables(): RemoteTables | undefined {
    return this.#planned && (this.#planned.servers?.remoteTables ?? NO_TABLES);
  }

  async close(): Promise<void> {
    await this.#settled();
    await this.#planned?.collective.close();
    await this.#planned?.servers?.close();
  }

  /** Without waiting for the others, as after an error. */
  async abort(): Promise<void> {
    await this.#planned?.servers?.abort();
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

  /** Loads the first batch, makes the plan with it, and binds its program. */
  async #begin(): Promise<StepWalk> {
    const { replica, planExchange, trace } = this.#options;
    this.#takeBatch();
    trace?.lap('load', 'load batch');
    // What is timed needs numbers, whichever they are.
    replica.fillRows(true);
    this.#planned = await planExchange(this.#context.samples, this.#context);
    this.#takeProgram(this.#planned);
    // Not before: the plan is that of a run without a trace.
    if (trace) {
      replica.cutForward();
      this.#planned.servers?.traceTo(trace.message);
      trace.lap('plan');
    }
    this.#isLoaded = true;
    return this.#bind();
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
    const { fetched, collective, servers } = this.#planned!;
    const before = JSON.stringify(groupsOf(this.#planned!.plan));
    this.#planned = { ...run, fetched, collective, servers };
    this.#takeProgram(this.#planned);
    this.#times.forget();
    const groups = groupsOf(run.plan);
    // What is cut alike need not be compiled again.
    if (JSON.stringify(groups) !== before) this.#options.replica.setGroups(groups);
    // One that has made no step has started nothing.
    this.#before ??= this.#walk;
    this.#bind();
    return run.plan;
  }

  #takeProgram(run: OpenRun): void {
    const { thread, programOf } = this.#options;
    this.#program = programOf(run);
    compareProgram(thread, this.#program);
  }

  /** This worker's parts, for the operations that each of them does. */
  #bind(): StepWalk {
    const { thread, replica, trace } = this.#options;
    const { collective, servers } = this.#planned!;
    const step = this.#context;
    step.elsewhere = servers?.elsewhere ?? NOTHING_ELSEWHERE;
    this.#walk = StepWalk.bind(this.#program!, {
      parts: [
        ({ kind }) => {
          if (kind === 'load') {
            return () => {
              if (!this.#isLoaded) this.#takeBatch();
            };
          }
          if (kind === 'check') return () => compareReplicas(thread, replica, this.#planned!.plan);
          return undefined;
        },
        replicaOperations({
          ...{ replica, step, checkLoss: (loss) => this.#checkLoss(loss) },
          onGradients: (names) => {
            this.#multiply(names, this.#total / step.samples.length);
            this.#times.addRows(names, replica.memory.gradients);
          },
          onCompiled: () => trace?.lap('compile'),
        }),
        (operation) => collective.handlerOf(operation),
        ...(servers ? [servers.handlers()] : []),
      ],
      finishedSteps: () => replica.step,
      onComputed: ({ kind, name }) => {
        const isShown = kind === 'load' && this.#isLoaded;
        this.#isLoaded = false;
        // The first worker writes for all.
        if (!isShown && (kind !== 'checkpoint' || thread.world.rank === 0)) trace?.lap(kind, name);
      },
      onWaited: ({ kind }) => trace?.lap(kind === 'pull' || kind === 'pull rows' ? kind : 'wait'),
      onMessage: ({ kind, name, form, number }, message) => {
        if (number !== undefined && form !== 'rows of a machine') this.#messages.push(message);
        trace?.message(kind, name, message.startedMs, message.endedMs, message.bytes);
      },
    });
    return this.#walk;
  }

  #takeBatch(): void {
    const { replica } = this.#options;
    const { samples, batchSize, isShared, lr } = this.#load!();
    this.#total = isShared ? batchSize : this.#samplesOfAll(batchSize);
    replica.findRows(samples);
    this.#context.begin(samples, lr);
  }

  async #settled(): Promise<void> {
    await this.#before?.settle();
    await this.#walk?.settle();
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
