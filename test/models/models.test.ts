/** Every model builds, has the parameters it should, learns a tiny batch by heart, and works in inference form. */
import { afterAll, describe, expect, it } from 'vitest';
import { Random, UsageError } from '../../src/base/index.ts';
import { OnnxCompute } from '../../src/compute/index.ts';
import { elementCount, exportOnnx, forInference, isBatch, type Graph } from '../../src/graph/index.ts';
import { SharedSpace } from '../../src/memory/index.ts';
import {
  findModel,
  gpt,
  lenet,
  lstmLanguageModel,
  mlp,
  models,
  resnet,
  textCnn,
  transformerClassifier,
  type ModelName,
} from '../../src/models/index.ts';
import { argmax } from '../../src/runtime/index.ts';
import { Replica } from '../../src/runtime/index.ts';
import { dataOf, initialValues, randomFeeds, runOnnx } from '../support/onnx.ts';
import { evaluate } from '../support/evaluate.ts';

const BATCH = 6;
const CLASSES = 3;
const VOCABULARY = 11;

interface Case {
  options: Record<string, unknown>;
  parameters: number;
  names: string[];
  logits: number[];
  lr?: number;
}

const image = { inputShape: [2, 8, 8], classes: CLASSES };
const text = { vocabulary: VOCABULARY, length: 7 };
const blockNames = (block: string) => [
  ...['norm1.gamma', 'norm1.beta'].map((name) => `${block}.${name}`),
  ...['q', 'k', 'v', 'out'].flatMap((part) => [
    `${block}.attention.${part}.w`,
    `${block}.attention.${part}.b`,
  ]),
  ...['norm2.gamma', 'norm2.beta', 'expand.w', 'expand.b', 'contract.w', 'contract.b'].map(
    (name) => `${block}.${name}`,
  ),
];
const blockParameters = (width: number, hidden: number) =>
  4 * width + 4 * (width * width + width) + 2 * width * hidden + hidden + width;

const cases: Record<ModelName, Case> = {
  mlp: {
    options: { ...image, hidden: [16, 12], dropout: 0.1 },
    parameters: 128 * 16 + 16 + 16 * 12 + 12 + 12 * 3 + 3,
    names: ['hidden1.w', 'hidden1.b', 'hidden2.w', 'hidden2.b', 'output.w', 'output.b'],
    logits: [CLASSES],
  },
  lenet: {
    options: { ...image, filters: [4, 6], kernel: 3, hidden: 10, dropout: 0.1 },
    parameters: 4 * 2 * 9 + 4 + 6 * 4 * 9 + 6 + 24 * 10 + 10 + 10 * 3 + 3,
    names: ['conv1.w', 'conv1.b', 'conv2.w', 'conv2.b', 'hidden.w', 'hidden.b', 'output.w', 'output.b'],
    logits: [CLASSES],
  },
  resnet: {
    options: { ...image, width: 3, blocks: 1 },
    // Stem; 3 -> 3; 3 -> 6 and 6 -> 12 with shortcuts; two numbers for each normalised channel; the output.
    parameters: 54 + 6 + (81 + 81 + 12) + (162 + 324 + 18 + 36) + (648 + 1296 + 72 + 72) + 12 * 3 + 3,
    names: [
      ...['stem', ...['first', 'second'].map((part) => `stage1.block1.${part}`)],
      ...[2, 3].flatMap((stage) =>
        ['first', 'second', 'shortcut'].map((part) => `stage${stage}.block1.${part}`),
      ),
    ]
      .flatMap((name) => [`${name}.conv.w`, `${name}.norm.gamma`, `${name}.norm.beta`])
      .concat('output.w', 'output.b'),
    logits: [CLASSES],
  },
  'text-cnn': {
    options: {
      ...text,
      classes: CLASSES,
      size: 6,
      widths: [2, 3],
      filters: 5,
      dropout: 0.2,
      embeddingDropout: 0.1,
      wordDropout: 0.1,
    },
    parameters: 11 * 6 + 5 * 6 * 2 + 5 + 5 * 6 * 3 + 5 + 10 * 3 + 3,
    names: ['embedding.table', 'conv1.w', 'conv1.b', 'conv2.w', 'conv2.b', 'output.w', 'output.b'],
    logits: [CLASSES],
  },
  'lstm-lm': {
    options: { ...text, size: 12, units: 16, layers: 2, dropout: 0.1 },
    parameters: 11 * 12 + 64 * (12 + 16 + 2) + 64 * (16 + 16 + 2) + 16 * 11 + 11,
    names: [
      'embedding.table',
      ...[1, 2].flatMap((i) => ['w_ih', 'w_hh', 'b_ih', 'b_hh'].map((n) => `lstm${i}.${n}`)),
      'output.w',
      'output.b',
    ],
    logits: [7, VOCABULARY],
    lr: 0.03,
  },
  'sampled-lm': {
    // So many words drawn that each sample's hold nearly all words: what is learnt by heart holds among all of them.
    options: { ...text, size: 12, units: 16, drawn: 30, dropout: 0.1 },
    parameters: 2 * 11 * 12 + 64 * (12 + 16 + 2) + 16 * 12,
    names: [
      'embedding.table',
      ...['w_ih', 'w_hh', 'b_ih', 'b_hh'].map((n) => `lstm1.${n}`),
      'projection.w',
      'output.table',
    ],
    logits: [7, VOCABULARY],
    lr: 0.03,
  },
  transformer: {
    options: { ...text, classes: CLASSES, width: 8, heads: 2, layers: 1, hidden: 10 },
    parameters: 11 * 8 + 7 * 8 + blockParameters(8, 10) + 16 + 8 * 3 + 3,
    names: [
      'embedding.table',
      'positions',
      ...blockNames('block1'),
      'norm.gamma',
      'norm.beta',
      'output.w',
      'output.b',
    ],
    logits: [CLASSES],
  },
  gpt: {
    options: { ...text, width: 8, heads: 2, layers: 2, dropout: 0.05 },
    parameters: 11 * 8 + 7 * 8 + 2 * blockParameters(8, 32) + 16 + 8 * 11,
    names: [
      'embedding.table',
      'positions',
      ...blockNames('block1'),
      ...blockNames('block2'),
      'norm.gamma',
      'norm.beta',
      'output.w',
    ],
    logits: [7, VOCABULARY],
  },
};

const space = SharedSpace.create();
const compute = new OnnxCompute();
afterAll(() => compute.close());

/** A batch whose labels or targets are random, so that a falling loss means the samples are learnt by heart. */
function fillBatch(replica: Replica, seed: number): void {
  const random = new Random(seed);
  for (const [name, array] of Object.entries(replica.inputs)) {
    const draw =
      name === 'x' ? () => random.normal() : () => random.below(name === 'labels' ? CLASSES : VOCABULARY);
    for (let i = 0; i < array.length; i++) array[i] = draw();
  }
}

describe.each(Object.entries(cases))('%s', (name, { options, parameters, names, logits, lr = 0.01 }) => {
  const build = () => models[name as ModelName].build(options);

  it('has the documented inputs, output and parameters', () => {
    const { graph, loss, outputs } = build();
    expect([...graph.parameters.keys()].sort()).toEqual([...names].sort());
    expect([...graph.parameters.values()].reduce((sum, { shape }) => sum + elementCount(shape), 0)).toBe(
      parameters,
    );
    const inputs = [...graph.inputs.keys()];
    expect(inputs[0]).toBe('inputShape' in options ? 'x' : 'tokens');
    expect(inputs[1]).toBe('classes' in options ? 'labels' : 'targets');
    expect(loss.shape).toEqual([]);
    const [batch, ...rest] = outputs.logits!.shape;
    expect(isBatch(batch!)).toBe(true);
    expect(rest).toEqual(logits);
  });

  it('learns a tiny batch by heart and then answers it right in inference form', () => {
    const replica = new Replica(build(), {
      compute,
      space,
      optimizer: { name: 'adam', lr },
      maxBatch: BATCH,
      seed: 7,
    });
    try {
      fillBatch(replica, 3);
      const samples = Array.from({ length: BATCH }, (_, i) => i);
      const first = replica.computeGradients(samples);
      expect(first).toBeCloseTo(Math.log(logits.at(-1)!), -0.5);
      for (let step = 0; step < 200; step++) {
        replica.computeGradients(samples);
        replica.update();
      }
      const [loss, scores] = replica.evaluator(['loss', 'logits']).run(BATCH);
      expect(loss!.view[0]).toBeLessThan(0.3 * first);
      const wanted = replica.inputs.labels ?? replica.inputs.targets!;
      const width = logits.at(-1)!;
      const right = Array.from(wanted).filter(
        (label, i) => argmax(scores!.view as Float32Array, i * width, width) === label,
      );
      expect(right.length / wanted.length).toBeGreaterThan(0.85);
      expect(replica.isFinite()).toBe(true);
    } finally {
      replica.close();
    }
  });

  it('trains to the same bits where the forward pass runs apart', () => {
    const train = (isApart: boolean) => {
      const replica = new Replica(build(), {
        ...{ compute, space, optimizer: { name: 'adam', lr }, maxBatch: BATCH, seed: 7 },
      });
      try {
        if (isApart) replica.cutForward();
        fillBatch(replica, 3);
        const parts: string[] = [];
        for (let step = 0; step < 3; step++) {
          const samples = Array.from({ length: BATCH }, (_, i) => i);
          replica.memory.loss.view[0] = NaN;
          replica.forward(samples, () => parts.push('compile'));
          if (Number.isFinite(replica.memory.loss.view[0])) parts.push('forward');
          replica.backward(0);
          parts.push('backward');
          replica.takeStates();
          replica.update();
        }
        const { parameters, states } = replica.memory;
        const values = [...parameters.values(), ...states.values()].map(({ view }) => view.slice());
        return { parts, values };
      } finally {
        replica.close();
      }
    };
    const [whole, apart] = [train(false), train(true)];
    expect(apart.values).toEqual(whole.values);
    expect(whole.parts).not.toContain('forward');
    expect(apart.parts.slice(0, 3)).toEqual(['compile', 'forward', 'backward']);
  });

  it('gives the same logits in inference form and from its ONNX file', async () => {
    const { graph, outputs } = build();
    const [inference] = forInference([outputs.logits!]);
    expect(inference!.graph.dropoutMasks.size).toBe(0);
    const input = [...inference!.graph.inputs.values()];
    expect(input).toHaveLength(1);
    const feeds = randomFeeds(input, 2, 5, VOCABULARY);
    const values = initialValues(graph);
    const [ours] = evaluate([inference!], { ...values, ...dataOf(feeds) }, { batch: 2 });
    const results = await runOnnx(
      exportOnnx(outputs, (source) => values[source.label]!),
      feeds,
    );
    const theirs = results.logits!;
    expect(theirs.shape).toEqual([2, ...logits]);
    theirs.data.forEach((value, i) => expect(value).toBeCloseTo(ours![i]!, 4));
  });
});

describe('options', () => {
  const image = { inputShape: [1, 28, 28] as [number, number, number], classes: 10 };
  const text = { vocabulary: 20, length: 8 };
  const count = ({ graph }: { graph: Graph }) =>
    [...graph.parameters.values()].reduce((sum, { shape }) => sum + elementCount(shape), 0);
  const code = (act: () => unknown) => {
    try {
      act();
    } catch (error) {
      return error instanceof UsageError ? error.code : error;
    }
    return undefined;
  };

  it('have defaults that make usable models', () => {
    expect(count(mlp(image))).toBe(784 * 1024 + 1024 + 1024 * 1024 + 1024 + 1024 * 10 + 10);
    expect(textCnn({ ...text, classes: 2 }).graph.parameters.get('conv3.w')!.shape).toEqual([640, 128]);
    expect(lstmLanguageModel(text).graph.updateOperations).toHaveLength(1);
    expect(lstmLanguageModel({ ...text, clipNorm: null }).graph.updateOperations).toHaveLength(0);
    for (const build of [lenet, resnet]) expect(build(image).outputs.logits!.shape.slice(1)).toEqual([10]);
    expect(transformerClassifier({ ...text, classes: 4 }).outputs.logits!.shape.slice(1)).toEqual([4]);
    expect(gpt(text).graph.parameters.get('block4.expand.w')!.shape).toEqual([128, 512]);
  });

  it('are refused with the field named when unknown, missing or out of range', () => {
    expect(code(() => mlp({ ...image, dropout: 1 }))).toBe('INVALID_CONFIG');
    expect(() => models.lenet.build({ ...image, filterz: [1, 2] })).toThrow(/'lenet'.*filterz/);
    expect(() => models['text-cnn'].build({ vocabulary: 20, classes: 2 })).toThrow(/length/);
    expect(() => models.gpt.build(null)).toThrow(/'gpt'/);
    expect(code(() => gpt({ ...text, width: 10, heads: 4 }))).toBe('SHAPE_MISMATCH');
  });

  it('are refused in words: what is missing, what was found and what was expected', () => {
    expect(() => models.lenet.build({ inputShape: [1, 8, 8] })).toThrow(
      "The options of model 'lenet' are wrong: classes is missing; expected a number. ",
    );
    expect(() => models.mlp.build({ ...image, classes: 'ten', hidden: [0] })).toThrow(
      'are wrong: classes is "ten"; expected a number; hidden.0 is 0; expected above 0. ',
    );
  });

  it('are all described, and every model has a summary of one sentence', () => {
    for (const { options, summary } of Object.values(models)) {
      expect(summary).toMatch(/^[^.]+\.$/);
      for (const [field, schema] of Object.entries(options.shape)) {
        expect((schema as { description?: string }).description, field).toMatch(/\.$/);
      }
    }
  });

  it('name a model from outside only by a known name', () => {
    expect(findModel('text-cnn')).toBe(models['text-cnn']);
    expect(code(() => findModel('toString'))).toBe('INVALID_CONFIG');
  });
});

describe('padding', () => {
  it('has a zero vector before and after training', () => {
    const replica = new Replica(
      textCnn({ vocabulary: 9, classes: CLASSES, length: 6, size: 4, filters: 3 }),
      {
        compute,
        space,
        optimizer: { name: 'adam', lr: 0.01, weightDecay: 0.01 },
        maxBatch: 2,
      },
    );
    try {
      const row = () =>
        Array.from(replica.memory.parameters.get('embedding.table')!.view.slice(0, 8), (v) => v !== 0);
      const expected = [false, false, false, false, true, true, true, true];
      expect(row()).toEqual(expected);
      replica.inputs.tokens!.set([1, 2, 0, 0, 0, 0, 3, 4, 5, 0, 0, 0]);
      for (let step = 0; step < 3; step++) {
        replica.computeGradients([0, 1]);
        replica.update();
      }
      expect(row()).toEqual(expected);
    } finally {
      replica.close();
    }
  });

  it.each([
    ['text-cnn', textCnn],
    ['transformer', transformerClassifier],
  ] as const)('of a text does not change what %s says', (_name, build) => {
    const logitsOf = (length: number) => {
      const { graph, outputs } = build({ vocabulary: 20, classes: 3, length });
      const values = initialValues(graph);
      const words = [5, 3, 19, 7, 2];
      const tokens = [...words, ...Array.from({ length: length - words.length }, () => 0)];
      // Positions beyond the text are read by nobody; the first rows are what both have.
      if (values.positions) values.positions = values.positions.map((_, i) => Math.sin(i));
      return evaluate(forInference([outputs.logits!]), { ...values, tokens }, { batch: 1 })[0]!;
    };
    logitsOf(6).forEach((value, i) => expect(value).toBeCloseTo(logitsOf(12)[i]!, 5));
  });
});
