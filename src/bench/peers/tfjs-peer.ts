/**
 * TensorFlow.js (WASM backend, SIMD, one thread) as a peer of `tributary bench compute`: the MLP only, because that backend
 * has no gradient of a convolution's filter. It speaks the JSON lines of torch_peer.py and takes the same tensor files
 * (Linear weights [out, in]). A program, not a module: `node tfjs-peer.js <folder whose node_modules holds TensorFlow.js>`.
 * Variants, with equal losses: '' and 'twin' have the gradients written out (stepByHand); 'autodiff' is the plain way, several
 * times slower, because the backend's MatMul leaves XNNPACK for a scalar loop when a transpose flag is set, as its gradient
 * does. The plain way needs the package @tensorflow/tfjs: the Node build of tfjs-core alone registers no gradients.
 */
import { createRequire } from 'node:module';
import { dirname, join, resolve } from 'node:path';
import { createInterface } from 'node:readline';
import { readPeerTensors } from '../peer-tensors.ts';
import type { Scalar, Tensor, TensorFlow, Variable, WasmBackend } from './tfjs-types.ts';

const learningRate = 0.01;
const sizes = [784, 1024, 1024, 10] as const;
const variants = ['', 'twin', 'autodiff'] as const;

interface Request {
  readonly cmd?: string;
  readonly model?: string;
  readonly batch?: number;
  readonly variant?: string;
  readonly tensors?: string;
  readonly seed?: number;
  readonly steps?: number;
}

interface Training {
  /** One training step; the caller disposes the loss. */
  step(): Scalar;
  dispose(): void;
}

async function openTensorFlow(folder: string): Promise<{ tf: TensorFlow; wasm: WasmBackend }> {
  const require = createRequire(join(resolve(folder), 'package.json'));
  const tf = require('@tensorflow/tfjs-core') as TensorFlow;
  try {
    require('@tensorflow/tfjs'); // Registers the gradients with the same core.
  } catch {
    // Without it the variant 'autodiff' fails and says what is missing; the other needs no registered gradient.
  }
  const wasm = require('@tensorflow/tfjs-backend-wasm') as WasmBackend;
  wasm.setThreadsCount(1);
  wasm.setWasmPaths(join(dirname(require.resolve('@tensorflow/tfjs-backend-wasm')), '/'));
  if (!(await tf.setBackend('wasm'))) throw new Error('the WASM backend did not start');
  return { tf, wasm };
}

/**
 * One step with the gradients written out, on columns: weights [out, in], activations [features, batch]. XNNPACK packs the
 * right-hand matrix of every product anew, so that side is always the small one. The gradient towards layer 2's input
 * is the exception: it packs the weights, unless `twin` holds them as [in, out], kept by an update of its own.
 */
function stepByHand(
  tf: TensorFlow,
  columns: Tensor,
  oneHot: Tensor,
  weights: Variable[],
  biases: Variable[],
  twin: Variable | undefined,
): Scalar {
  const outputs: Tensor[] = [columns];
  for (let layer = 0; layer < 3; layer++) {
    const z = tf.add(tf.matMul(weights[layer]!, outputs[layer]!), biases[layer]!);
    outputs.push(layer < 2 ? tf.relu(z) : z);
  }
  const logits = tf.transpose(outputs[3]!);
  const loss = tf.mean(tf.sub(tf.logSumExp(logits, 1), tf.sum(tf.mul(logits, oneHot), 1)));
  let dz = tf.div(tf.sub(tf.softmax(logits), oneHot), columns.shape[1]!);
  for (let layer = 2; layer >= 0; layer--) {
    const [input, w, b] = [outputs[layer]!, weights[layer]!, biases[layer]!];
    const dzColumns = tf.transpose(dz);
    // Before the update of w. Layer 3 is so small that its packing does not matter.
    let dInput: Tensor | undefined;
    if (layer === 1 && twin) dInput = tf.transpose(tf.matMul(twin, dzColumns));
    else if (layer > 0) dInput = tf.matMul(dz, w);
    const scaled = tf.mul(dzColumns, learningRate);
    const rows = tf.transpose(input);
    w.assign(tf.sub(w, tf.matMul(scaled, rows)));
    b.assign(tf.sub(b, tf.sum(scaled, 1, true)));
    if (layer === 1 && twin) twin.assign(tf.sub(twin, tf.matMul(input, tf.mul(dz, learningRate))));
    if (dInput) dz = tf.mul(dInput, tf.step(rows));
  }
  return loss;
}

async function load(tf: TensorFlow, request: Request): Promise<Training & { describe: () => object }> {
  const batch = request.batch ?? 0;
  const variant = request.variant ?? '';
  if (request.model !== 'mlp') throw new Error(`model ${request.model} is unknown; expected mlp`);
  if (!Number.isInteger(batch) || batch < 1)
    throw new Error(`batch is ${batch}, expected a whole number of at least 1`);
  if (!(variants as readonly string[]).includes(variant))
    throw new Error(`variant ${variant} is unknown; expected one of ${variants.join(', ')}`);
  const given =
    request.tensors === undefined ? new Map<string, never>() : await readPeerTensors(request.tensors);
  const take = (name: string, shape: readonly number[]): Float32Array | Int32Array | undefined => {
    const tensor = given.get(name);
    if (tensor !== undefined && tensor.shape.join() !== shape.join())
      throw new Error(`tensor ${name} has shape [${tensor.shape.join()}], expected [${shape.join()}]`);
    return tensor?.data;
  };
  const seed = request.seed ?? 1;
  const byHand = variant !== 'autodiff';
  const params: { name: string; shape: number[] }[] = [];
  const weights: Variable[] = [];
  const biases: Variable[] = [];
  for (let layer = 0; layer < 3; layer++) {
    const [inside, outside] = [sizes[layer]!, sizes[layer + 1]!];
    const name = `fc${layer + 1}`;
    const w = take(`${name}.weight`, [outside, inside]);
    const b = take(`${name}.bias`, [outside]);
    const bound = 1 / Math.sqrt(inside);
    const rows = w
      ? tf.tensor(w, [outside, inside])
      : tf.randomUniform([outside, inside], -bound, bound, 'float32', seed + layer);
    const offsets = b ? tf.tensor(b, [outside]) : tf.zeros([outside]);
    weights.push(tf.variable(byHand ? rows : tf.transpose(rows)));
    biases.push(tf.variable(byHand ? tf.reshape(offsets, [outside, 1]) : offsets));
    params.push(
      { name: `${name}.weight`, shape: [outside, inside] },
      { name: `${name}.bias`, shape: [outside] },
    );
  }
  const pixels = take('x', [batch, 784]);
  const labels = take('y', [batch]) ?? Int32Array.from({ length: batch }, (_, i) => (i * 7 + seed) % 10);
  const x = pixels
    ? tf.tensor(pixels, [batch, 784])
    : tf.randomUniform([batch, 784], -1, 1, 'float32', seed + 9);
  const y = tf.cast(tf.oneHot(tf.tensor(Int32Array.from(labels), [batch], 'int32'), 10), 'float32');

  const variables = [...weights, ...biases];
  const columns = tf.transpose(x);
  const twin = variant === 'twin' ? tf.variable(tf.transpose(weights[1]!)) : undefined;
  const optimizer = tf.train.sgd(learningRate);
  const loss = (): Scalar => {
    let h: Tensor = x;
    for (let layer = 0; layer < 3; layer++) {
      const z = tf.add(tf.matMul(h, weights[layer]!), biases[layer]!);
      h = layer < 2 ? tf.relu(z) : z;
    }
    return tf.losses.softmaxCrossEntropy(y, h);
  };
  const stepByAutodiff = (): Scalar => {
    const { value, grads } = tf.variableGrads(loss, variables);
    optimizer.applyGradients(grads);
    return value;
  };
  return {
    step: () =>
      tf.tidy(() => (byHand ? stepByHand(tf, columns, y, weights, biases, twin) : stepByAutodiff())),
    dispose() {
      for (const tensor of [...variables, x, columns, y]) tensor.dispose();
      twin?.dispose();
      optimizer.dispose();
    },
    describe: () => ({
      params,
      inputs: [
        { name: 'x', dtype: 'float32', shape: [batch, 784] },
        { name: 'y', dtype: 'int32', shape: [batch] },
      ],
    }),
  };
}

async function serve(folder: string, reply: (answer: object) => void): Promise<void> {
  let engine: Awaited<ReturnType<typeof openTensorFlow>>;
  try {
    engine = await openTensorFlow(folder);
  } catch (error) {
    reply({ ok: false, missing: 'tfjs', error: String(error) });
    return;
  }
  const { tf, wasm } = engine;
  let training: Awaited<ReturnType<typeof load>> | undefined;

  const measure = (steps: number | undefined): object => {
    if (training === undefined) throw new Error('no model is loaded; send a load request first');
    if (steps === undefined || !Number.isInteger(steps) || steps < 1)
      throw new Error(`steps is ${steps}, expected a whole number of at least 1`);
    const start = performance.now();
    for (let i = 1; i < steps; i++) training.step().dispose();
    const last = training.step();
    const seconds = (performance.now() - start) / 1000;
    const loss = last.dataSync()[0]!;
    last.dispose();
    return { seconds, loss };
  };

  // Opened only now: lines that arrive before somebody iterates are lost.
  const lines = createInterface({ input: process.stdin });
  for await (const line of lines) {
    try {
      const request = JSON.parse(line) as Request;
      let answer: object;
      if (request.cmd === 'info') {
        answer = {
          peer: 'tfjs',
          version: tf.version_core,
          threads: wasm.getThreadsCount(),
          simd: await tf.env().getAsync('WASM_HAS_SIMD_SUPPORT'),
          models: ['mlp'],
        };
      } else if (request.cmd === 'variants') answer = { variants };
      else if (request.cmd === 'load') {
        training?.dispose();
        training = undefined;
        training = await load(tf, request);
        answer = training.describe();
      } else if (request.cmd === 'step') answer = measure(1);
      else if (request.cmd === 'time') answer = measure(request.steps);
      else if (request.cmd === 'close') break;
      else
        throw new Error(
          `command ${request.cmd} is unknown; expected info, variants, load, step, time or close`,
        );
      reply({ ...answer, ok: true });
    } catch (error) {
      reply({ ok: false, error: String(error) });
    }
  }
  lines.close();
}

// Libraries that print must not corrupt the protocol.
console.log = console.error;
await serve(process.argv[2] ?? '.', (answer) => process.stdout.write(`${JSON.stringify(answer)}\n`));
