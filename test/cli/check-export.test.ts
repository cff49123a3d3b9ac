import { afterAll, expect, test } from 'vitest';
import { checkExport } from '../../src/cli/check-export.ts';
import { OnnxCompute } from '../../src/compute/index.ts';
import { elementCount, exportOnnx, fillInitial, type Tensor } from '../../src/graph/index.ts';
import { mlp, textCnn } from '../../src/models/index.ts';
import { expectError } from '../data/expect-error.ts';

const compute = new OnnxCompute();
afterAll(() => compute.close());

const models = {
  mlp: mlp({ inputShape: [3], classes: 2, hidden: [4] }),
  'text-cnn': textCnn({ vocabulary: 7, classes: 2, length: 5, size: 4, filters: 3 }),
};

function initial(source: Tensor): Float32Array {
  const { shape, initialiser, name } = source.graph.parameters.get(source.label)!;
  const value = new Float32Array(elementCount(shape));
  fillInitial(value, initialiser, name, 5);
  return value;
}

test.each(Object.entries(models))('a faithful file of %s passes', (_name, { outputs }) => {
  const checked = checkExport(exportOnnx(outputs, initial), outputs, {
    compute,
    valueOf: initial,
    tokens: 7,
  });
  expect(checked.difference).toBeLessThanOrEqual(1e-5);
  expect(Object.keys(checked.outputs)).toEqual(['logits']);
});

test.each(Object.entries(models))('a file of %s with another value does not', (_name, { outputs }) => {
  const disturbed = (source: Tensor) =>
    initial(source).map((value) => (source.label === 'output.b' ? value + 1e-3 : value));
  expectError(
    () => checkExport(exportOnnx(outputs, disturbed), outputs, { compute, valueOf: initial, tokens: 7 }),
    'BROKEN_INVARIANT',
    'logits[0]',
  );
});
