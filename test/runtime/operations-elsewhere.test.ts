/** What of a model's update operations whoever has a parameter elsewhere can do, and what it cannot. */
import { describe, expect, it } from 'vitest';
import * as g from '../../src/graph/index.ts';
import { operationsElsewhere, seesTouchedRows } from '../../src/runtime/index.ts';

function made(prepare: (graph: g.Graph) => void) {
  const graph = new g.Graph();
  graph.parameter('w', [2, 2], g.normal(1));
  graph.parameter('b', [2], g.normal(1));
  prepare(graph);
  const [w, b] = [graph.parameters.get('w')!, graph.parameters.get('b')!];
  return { graph, w, b };
}

describe('update operations of a parameter that is elsewhere', () => {
  it('are those that apply to it, in their order, with the place of the norm', () => {
    const { graph, w, b } = made((of) => {
      g.clipByValue(of, 0.5);
      g.clipByGlobalNorm(of, 1);
      g.clipByGlobalNorm(of, 2);
      g.weightDecay(of, 0.1, ({ name }) => name === 'w');
      g.movingAverage(of, 0.9, { name: 'slow', applies: ({ name }) => name === 'b' });
    });
    const before = [{ kind: 'clip', limit: 0.5 }, { kind: 'scale' }];
    expect(operationsElsewhere(graph, w)).toEqual({
      gradient: [...before, { kind: 'decay', rate: 0.1 }],
      averages: [],
    });
    expect(operationsElsewhere(graph, b)).toEqual({
      gradient: before,
      averages: [{ name: 'slow', decay: 0.9 }],
    });
    expect([seesTouchedRows(graph, w), seesTouchedRows(graph, b)]).toEqual([true, false]);
  });

  it.each<[string, (graph: g.Graph) => void, RegExp]>([
    ['a norm of another order', (of) => g.clipByGlobalNorm(of, 1, { order: 1 }), /norm of order 1/],
    ['an expression', (of) => g.transformGradients(of, 'halve', (one) => one), /halve is an expression/],
    [
      'two norms with a clip in between',
      (of) => {
        g.clipByGlobalNorm(of, 1);
        g.clipByValue(of, 1);
        g.clipByGlobalNorm(of, 1);
      },
      /twice with another operation in between/,
    ],
  ])('are none with %s', (_, prepare, reason) => {
    const { graph, w } = made(prepare);
    expect(operationsElsewhere(graph, w)).toMatch(reason);
  });
});
