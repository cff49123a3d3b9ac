/**
 * `bench compute`: full training steps (forward, backward, plain SGD) of the same models here and in PyTorch, and the
 * MLP in TensorFlow.js, one thread each. For every model the peer's variants are raced and the fastest one is taken; the first
 * losses must agree; then both sides alternate, and the medians are compared.
 */
import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { InternalError, Random, TributaryError } from '../base/index.ts';
import { OnnxCompute } from '../compute/index.ts';
import { SharedSpace } from '../memory/index.ts';
import { Replica } from '../runtime/index.ts';
import { computeModels, toPeerTensor, type ComputeModel } from './compute-models.ts';
import { describeMachine, type Machine } from './machine.ts';
import { tfjsPeerCommand, torchPeerCommand } from './peer-command.ts';
import { PeerProcess } from './peer-process.ts';
import { writePeerTensors } from './peer-tensors.ts';

export interface ComputeBenchOptions {
  /** Environment for the peers. */
  readonly env: Readonly<Record<string, string | undefined>>;
  /** Only these models. Default all. */
  readonly models?: readonly string[] | undefined;
  /** Alternating rounds, at least 5. Default 7. */
  readonly rounds?: number | undefined;
  /** Shortest time of one side's turn, in milliseconds. Default 400. */
  readonly turnMs?: number | undefined;
  /** Folder whose node_modules holds TensorFlow.js. Default: TensorFlow.js is left out. */
  readonly tfjsFolder?: string | undefined;
  readonly signal?: AbortSignal | undefined;
  /** What is going on, in words. */
  readonly onProgress?: (message: string) => void;
}

export interface ComputeCase {
  readonly model: string;
  readonly batch: number;
  readonly oursSamplesPerSec: number;
  /** Null where PyTorch is absent. */
  readonly torchSamplesPerSec: number | null;
  /** Ours / PyTorch's. */
  readonly ratio: number | null;
  /** The variant of the peer's model that won the race. */
  readonly torchVariant: string | null;
  /** The model as a PyTorch user writes it (the faster of dense and sparse embedding gradients), not rewritten for speed. */
  readonly torchPlainSamplesPerSec: number | null;
  /** Ours / that, measured in turns of their own. */
  readonly plainRatio: number | null;
  /** TensorFlow.js as its users train: its own automatic differentiation. Null where absent or not this model. */
  readonly tfjsSamplesPerSec: number | null;
  readonly tfjsRatio: number | null;
  /** TensorFlow.js with the gradients written by hand around its slow transposed products. */
  readonly tfjsByHandSamplesPerSec: number | null;
}

export interface ComputeBench {
  readonly bench: 'compute';
  readonly date: string;
  readonly machine: Machine;
  readonly configuration: Readonly<Record<string, unknown>>;
  /** What was left out, and why. */
  readonly skipped: readonly string[];
  readonly cases: readonly ComputeCase[];
}

const LOSS_TOLERANCE = 1e-3;
/** The model as written, with dense or sparse embedding gradients. */
const PLAIN_VARIANTS = new Set(['', 'sparse']);

export async function benchCompute(options: ComputeBenchOptions): Promise<ComputeBench> {
  const { rounds = 7, turnMs = 400, onProgress = () => undefined } = options;
  const folder = await mkdtemp(join(tmpdir(), 'tributary-bench-'));
  const skipped: string[] = [];
  const start = async (name: string, begin: () => Promise<PeerProcess>) => {
    try {
      return await begin();
    } catch (error) {
      if (!(error instanceof TributaryError) || error.code !== 'MISSING_COMPONENT') throw error;
      skipped.push(`${name}: ${error.message}`);
      onProgress(`${name} is left out: ${error.message}`);
      return undefined;
    }
  };
  const peerOptions = options.signal ? { signal: options.signal } : {};
  const torch = await start('PyTorch', () =>
    PeerProcess.start(torchPeerCommand({ env: options.env }), peerOptions),
  );
  const { tfjsFolder } = options;
  const tfjs =
    tfjsFolder === undefined
      ? undefined
      : await start('TensorFlow.js', () =>
          PeerProcess.start(tfjsPeerCommand({ env: options.env, packageFolder: tfjsFolder }), peerOptions),
        );
  if (tfjsFolder === undefined)
    skipped.push(
      'TensorFlow.js: npm install --prefix DIR @tensorflow/tfjs @tensorflow/tfjs-backend-wasm, then give --tfjs DIR.',
    );
  try {
    const cases: ComputeCase[] = [];
    for (const model of computeModels.filter(({ name }) => options.models?.includes(name) ?? true)) {
      options.signal?.throwIfAborted();
      onProgress(`${model.name}, batch ${model.batch}`);
      cases.push(await runCase(model, { torch, tfjs, folder, rounds: Math.max(5, rounds), turnMs }));
    }
    return {
      bench: 'compute',
      date: new Date().toISOString(),
      machine: describeMachine(),
      configuration: {
        step: 'forward + backward + SGD (rate 0.01), fixed inputs',
        rounds: Math.max(5, rounds),
        turnMs,
        statistic: 'median of alternating rounds',
        ours: { engine: 'ONNX Runtime by its C API', threads: 1 },
        torch: torch ? { ...torch.info, models: undefined } : null,
        tfjs: tfjs ? { version: tfjs.info.version, threads: tfjs.info.threads } : null,
      },
      skipped,
      cases,
    };
  } finally {
    await Promise.all([torch?.close(), tfjs?.close()]);
    await rm(folder, { recursive: true, force: true });
  }
}

interface CaseContext {
  readonly torch: PeerProcess | undefined;
  readonly tfjs: PeerProcess | undefined;
  readonly folder: string;
  readonly rounds: number;
  readonly turnMs: number;
}

async function runCase(model: ComputeModel, context: CaseContext): Promise<ComputeCase> {
  const { torch, tfjs, folder, rounds, turnMs } = context;
  const ours = new OurSide(model);
  try {
    const tensors = await writePeerTensors(folder, `${model.name}-${model.batch}`, ours.tensors());
    const losses = [ours.step(), ours.step(), ours.step()];
    const request = { model: model.name, batch: model.batch, tensors };
    const check = async (peer: PeerProcess) => {
      for (const [step, mine] of losses.entries()) {
        const theirs = await peer.step();
        if (Math.abs(mine - theirs) > LOSS_TOLERANCE * Math.max(1, Math.abs(theirs))) {
          throw new InternalError(
            'BROKEN_INVARIANT',
            `${model.name}: the loss of step ${step} is ${mine} here and ${theirs} at ${peer.command.name}; the comparison would be void.`,
          );
        }
      }
    };
    const race: { variant: string; seconds: number }[] = [];
    for (const variant of torch ? await torch.variants(model.name) : []) {
      await torch!.load({ ...request, variant });
      await check(torch!);
      await torch!.time(3);
      const seconds = Math.min((await torch!.time(10)).seconds, (await torch!.time(10)).seconds);
      race.push({ variant, seconds });
    }
    race.sort((a, b) => a.seconds - b.seconds);
    const torchVariant = race[0]?.variant ?? null;
    if (torch) await torch.load({ ...request, variant: torchVariant! });
    const sides: Side[] = [ours];
    if (torch) sides.push(new PeerSide(torch));
    const medians = await alternate(sides, rounds, turnMs);
    const rate = (secondsPerStep: number | undefined) =>
      secondsPerStep === undefined ? null : model.batch / secondsPerStep;
    const oursRate = rate(medians[0])!;
    const torchRate = rate(medians[1]);
    let plain = medians;
    const plainVariant = race.find(({ variant }) => PLAIN_VARIANTS.has(variant))?.variant;
    if (torch && plainVariant !== torchVariant) {
      await torch.load({ ...request, variant: plainVariant! });
      plain = await alternate(sides, rounds, turnMs);
    }
    const plainRate = rate(plain[1]);
    const tfjsRates =
      tfjs && model.name === 'mlp' ? await timeTfjs(tfjs, request, ours, context, check) : undefined;
    const tfjsRate = rate(tfjsRates?.autodiff);
    return {
      model: model.name,
      batch: model.batch,
      oursSamplesPerSec: oursRate,
      torchSamplesPerSec: torchRate,
      ratio: torchRate === null ? null : oursRate / torchRate,
      torchVariant: torchVariant === '' ? 'plain' : torchVariant,
      torchPlainSamplesPerSec: plainRate,
      plainRatio: plainRate === null ? null : rate(plain[0])! / plainRate,
      tfjsSamplesPerSec: tfjsRate,
      tfjsRatio: tfjsRate === null ? null : rate(tfjsRates!.ours)! / tfjsRate,
      tfjsByHandSamplesPerSec: rate(tfjsRates?.byHand),
    };
  } finally {
    ours.close();
  }
}

async function timeTfjs(
  tfjs: PeerProcess,
  request: { model: string; batch: number; tensors: string },
  ours: OurSide,
  { rounds, turnMs }: CaseContext,
  check: (peer: PeerProcess) => Promise<void>,
): Promise<{ ours: number; autodiff: number | undefined; byHand: number }> {
  await tfjs.load({ ...request, variant: 'twin' });
  await check(tfjs);
  const [, byHand] = await alternate([ours, new PeerSide(tfjs)], rounds, turnMs);
  await tfjs.load({ ...request, variant: 'autodiff' });
  await check(tfjs);
  const [mine, autodiff] = await alternate([ours, new PeerSide(tfjs)], rounds, turnMs);
  return { ours: mine!, autodiff, byHand: byHand! };
}

interface Side {
  /** Seconds of this many steps. */
  time(steps: number): Promise<number>;
}

class PeerSide implements Side {
  readonly #peer: PeerProcess;
  constructor(peer: PeerProcess) {
    this.#peer = peer;
  }
  async time(steps: number): Promise<number> {
    return (await this.#peer.time(steps)).seconds;
  }
}

/** The median seconds a step of each side; one turn each, round after round, after a warm-up. */
async function alternate(sides: readonly Side[], rounds: number, turnMs: number): Promise<number[]> {
  const steps: number[] = [];
  for (const side of sides) {
    const once = (await side.time(3)) / 3;
    steps.push(Math.max(3, Math.ceil(turnMs / 1000 / once)));
    await side.time(steps.at(-1)!);
  }
  const times: number[][] = sides.map(() => []);
  for (let round = 0; round < rounds; round++) {
    for (const [i, side] of sides.entries()) times[i]!.push((await side.time(steps[i]!)) / steps[i]!);
  }
  return times.map((list) => list.sort((a, b) => a - b)[list.length >> 1]!);
}

class OurSide implements Side {
  readonly #replica: Replica;
  readonly #compute = new OnnxCompute({ threads: 1 });
  readonly #samples: Uint32Array;

  constructor({ build, batch, bounds }: ComputeModel) {
    const optimizer = { name: 'sgd', lr: 0.01 } as const;
    this.#replica = new Replica(build(), {
      compute: this.#compute,
      space: SharedSpace.create(),
      optimizer,
      maxBatch: batch,
      seed: 1,
    });
    this.#samples = Uint32Array.from({ length: batch }, (_, i) => i);
    const random = new Random(7);
    for (const [name, region] of this.#replica.memory.inputs) {
      const values = region.view as Float32Array;
      const bound = bounds[name];
      for (let i = 0; i < values.length; i++)
        values[i] = bound === undefined ? random.normal() : random.below(bound);
    }
  }

  /** Parameters and inputs as the peers want them. */
  tensors() {
    const { memory, model } = this.#replica;
    const parameters = [...memory.parameters].map(([name, { view }]) =>
      toPeerTensor(name, model.graph.parameters.get(name)!.shape, view),
    );
    const inputs = [...memory.inputs].map(([name, { view }]) => {
      const shape = model.graph.inputs
        .get(name)!
        .shape.map((dim) => (typeof dim === 'number' ? dim : this.#samples.length));
      return { name, shape, data: view.slice() as Float32Array | Int32Array };
    });
    return [...parameters, ...inputs];
  }

  step(): number {
    const loss = this.#replica.computeGradients(this.#samples);
    this.#replica.update();
    return loss;
  }

  time(steps: number): Promise<number> {
    const start = performance.now();
    for (let i = 0; i < steps; i++) this.step();
    return Promise.resolve((performance.now() - start) / 1000);
  }

  close(): void {
    this.#replica.close();
    this.#compute.close();
  }
}
