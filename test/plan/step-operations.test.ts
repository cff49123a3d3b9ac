/** The names by which a trace shows parameters that are handled together. */
import { expect, it } from 'vitest';
import { namesInShort } from '../../src/plan/index.ts';

const PARAMETERS = ['table', 'conv1.w', 'conv1.b', 'conv2.w', 'conv2.b', 'block.norm.gamma', 'block.out.w'];

it.each([
  [
    'the first and the last layer, whatever the order',
    ['conv2.b', 'conv2.w', 'conv1.w', 'conv1.b'],
    'conv1..conv2',
  ],
  ['one layer alone', ['conv1.w', 'conv1.b'], 'conv1'],
  ['parameters of a layer that is divided', ['conv1.b', 'conv2.w'], 'conv1.b..conv2.w'],
  ['one parameter of a divided layer', ['conv2.b'], 'conv2.b'],
  ['a parameter without a layer', ['table'], 'table'],
  ['what both begin with once', ['block.out.w', 'block.norm.gamma'], 'block.norm..out'],
  ['nothing', [], ''],
])('shows %s', (_what, names, shown) => {
  expect(namesInShort(names, PARAMETERS)).toBe(shown);
});
