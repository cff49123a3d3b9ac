/** The models of `bench exchange` have the published numbers of parameters, and the known exchange has the known result. */
import { describe, expect, it } from 'vitest';
import {
  checksum,
  elementsOf,
  exchangeModels,
  expectedWeights,
  fillGradient,
  formatChecksum,
  hasWeights,
  LEARNING_RATE,
  parseModel,
} from '../../src/bench/exchange/index.ts';
import type { ModelName } from '../../src/bench/exchange/index.ts';
import { createOptimizer, Kernels } from '../../src/kernels/index.ts';
import { SharedSpace } from '../../src/memory/index.ts';

describe('the models', () => {
  it.each<[ModelName, number, number]>([
    ['alexnet', 61_100_840, 16],
    ['vgg11', 132_863_336, 22],
    ['vgg19', 143_667_240, 38],
    ['googlenet', 6_624_904, 173],
    ['inception-v3', 23_834_568, 284],
    ['resnet18', 11_689_512, 62],
    ['resnet50', 25_557_032, 161],
    ['resnet269', 102_073_384, 818],
    ['lm', 104_775_680, 6],
  ])('%s has %i parameters in %i tensors', (name, elements, tensors) => {
    const model = exchangeModels[name]();
    expect(elementsOf(model)).toBe(elements);
    expect(model).toHaveLength(tensors);
    expect(new Set(model.map(({ key }) => key)).size).toBe(tensors);
    expect(model.filter(({ length }) => !(length > 0))).toEqual([]);
  });

  it('name tensors and lengths as PyTorch does', () => {
    const at = (name: ModelName, key: string) => exchangeModels[name]().find((tensor) => tensor.key === key);
    expect(at('vgg19', 'features.34.weight')).toEqual({ key: 'features.34.weight', length: 512 * 512 * 9 });
    expect(at('resnet50', 'layer2.0.downsample.0.weight')?.length).toBe(512 * 256);
    expect(at('resnet18', 'layer1.0.downsample.0.weight')).toBeUndefined();
    expect(at('inception-v3', 'Mixed_6b.branch7x7_2.conv.weight')?.length).toBe(128 * 128 * 7);
    expect(at('googlenet', 'inception3a.branch2.1.conv.weight')?.length).toBe(128 * 96 * 9);
  });

  it('mark the table of the language model, and no other tensor', () => {
    const tables = Object.values(exchangeModels).flatMap((model) =>
      model().filter(({ rowLength }) => rowLength !== undefined),
    );
    expect(tables).toEqual([{ key: 'embedding.weight', length: 800_000 * 128, rowLength: 128 }]);
  });

  it('are read from a command line by name or by lengths', () => {
    expect(parseModel('resnet18')).toEqual(exchangeModels.resnet18().map(({ length }) => length));
    expect(parseModel('3,17')).toEqual([3, 17]);
    for (const wrong of ['resnet19', '', '3,,4', '3,-1', 'toString'])
      expect(() => parseModel(wrong)).toThrow(expect.objectContaining({ code: 'INVALID_ARGUMENT' }) as Error);
  });
});

describe('the known exchange', () => {
  it.each([1, 2, 3, 8])('of %i ranks moves weights as our kernel does, bit by bit', (ranks) => {
    const space = SharedSpace.create({ maxBytes: 2 ** 20 });
    const kernels = Kernels.create(space);
    const segment = space.allocate(2 ** 17);
    const vector = () => segment.allocate('float32', 1003);
    const [weights, momentum, sum, own] = [vector(), vector(), vector(), vector()];
    for (let rank = 0; rank < ranks; rank++) {
      fillGradient(own.view, rank);
      kernels.axpy(sum, 1, own);
    }
    const optimizer = createOptimizer(kernels, { name: 'sgd', lr: LEARNING_RATE, momentum: 0.9 });
    for (let t = 1; t <= 5; t++) {
      const slots = { momentum_buffer: momentum };
      optimizer.update({ t, parameter: weights, gradient: sum, slots });
      expect(hasWeights(weights.view, expectedWeights(ranks, t)), `after ${t}`).toBe(true);
    }
    expect(hasWeights(weights.view, expectedWeights(ranks, 4))).toBe(false);
    expect(hasWeights(weights.view.subarray(70), expectedWeights(ranks, 5), 70)).toBe(true);
    weights.view[1002] = weights.view[1001]!;
    expect(hasWeights(weights.view, expectedWeights(ranks, 5))).toBe(false);
  });

  it('has gradients that differ by rank and by chunk, whatever the ranks', () => {
    const whole = new Float32Array(40_000);
    fillGradient(whole, 1);
    const part = new Float32Array(500);
    fillGradient(part, 1, 33_000);
    expect(part).toEqual(whole.slice(33_000, 33_500));
    fillGradient(part, 2, 33_000);
    expect(part).not.toEqual(whole.slice(33_000, 33_500));
    for (const chunk of [1024, 8192, 16384])
      expect(whole.slice(chunk, chunk + 64)).not.toEqual(whole.slice(0, 64));
    expect(new Set(expectedWeights(8, 3)).size).toBe(61);
  });

  it('has a checksum that adds up over tensors', () => {
    const weights = Float32Array.from({ length: 100 }, (_, i) => i - 50.5);
    const whole = checksum(weights);
    expect(checksum(weights.subarray(37), checksum(weights.subarray(0, 37)))).toBe(whole);
    expect(whole).toBe(new Uint32Array(weights.buffer).reduce((sum, bits) => (sum + bits) >>> 0, 0));
    expect(formatChecksum(255)).toBe('000000ff');
    weights[99] = 49.25;
    expect(checksum(weights)).not.toBe(whole);
  });
});
