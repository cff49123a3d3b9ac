/**
 * What several learners rely on: all that an update reads or writes of a parameter happens inside its guard, and a batch whose
 * loss is not finite leaves neither states nor a replica that counts as finite.
 */
import { afterAll, describe, expect, it } from 'vitest';
import { OnnxCompute } from '../../src/compute/index.ts';
import * as t from '../../src/graph/index.ts';
import { SharedSpace } from '../../src/memory/index.ts';
import { Replica, type ReplicaOptions } from '../../src/runtime/index.ts';

const space = SharedSpace.create();
const compute = new OnnxCompute();
afterAll(() => compute.close());

const FIRST = [1, -2];
const SECOND = [0.5, 0.25];
const GRADIENT = [3, 4];

/** loss = sum((first + second) * y), so that the gradients are the input itself. */
function sums(prepare: (graph: t.Graph) => void): t.Model {
  const graph = new t.Graph();
  const [first, second] = [
    graph.parameter('first', [2], t.values(FIRST)),
    graph.parameter('second', [2], t.values(SECOND)),
  ];
  const seen = graph.state('seen', [2]);
  const y = graph.input('y', [2]);
  graph.assign(seen, t.add(seen, y));
  const loss = t.add(t.sum(t.mul(first, y)), t.sum(t.mul(second, y)));
  prepare(graph);
  return { graph, loss, outputs: {} };
}

function use(
  prepare: (graph: t.Graph) => void,
  act: (replica: Replica) => void,
  guard?: ReplicaOptions['guard'],
): void {
  const optimizer = { name: 'sgd', lr: 1 } as const;
  const replica = new Replica(sums(prepare), { compute, space, optimizer, maxBatch: 1, guard });
  replica.inputs['y']!.set(GRADIENT);
  try {
    act(replica);
  } finally {
    replica.close();
  }
}

const valuesOf = (replica: Replica, name: string) => [...replica.memory.parameters.get(name)!.view];

describe('a guard', () => {
  it('is held while a moving average follows its parameter', () => {
    let replica: Replica | undefined;
    const averages = () =>
      [...replica!.memory.averages.get('average')!].flatMap(([name, { view }]) => [name, ...view]);
    const changes: string[] = [];
    let [before, isInside]: [unknown, boolean] = [undefined, false];
    const note = (where: string) => {
      if (JSON.stringify(averages()) !== JSON.stringify(before)) changes.push(where);
      before = averages();
    };
    use(
      (graph) => t.movingAverage(graph, 0.5),
      (made) => {
        replica = made;
        replica.computeGradients([0]);
        before = averages();
        replica.update();
        note('outside');
        expect(isInside).toBe(false);
        expect(changes).toEqual(['inside', 'inside']);
        const average = [...replica.memory.averages.get('average')!.get('first')!.view];
        expect(average).toEqual(valuesOf(replica, 'first').map((value, i) => 0.5 * FIRST[i]! + 0.5 * value));
      },
      (_, update) => {
        note('outside');
        isInside = true;
        update();
        isInside = false;
        note('inside');
      },
    );
  });

  it.each([
    ['weight decay', (graph: t.Graph) => t.weightDecay(graph, 0.5)],
    [
      'an operation of the user',
      (graph: t.Graph) =>
        t.transformGradients(graph, 'half', (gradient, parameter) => t.add(gradient, t.mul(parameter, 0.5))),
    ],
  ])('is held while %s reads a parameter', (_, prepare) => {
    let replica: Replica | undefined;
    const entered = new Set<number>();
    use(
      prepare,
      (made) => {
        replica = made;
        replica.computeGradients([0]);
        replica.update();
        for (const name of ['first', 'second']) {
          expect(valuesOf(replica, name)).toEqual(GRADIENT.map((gradient) => 100 - (gradient + 0.5 * 100)));
        }
      },
      (number, update) => {
        // Somebody else has just written it, and let go.
        const { gradients, parameters } = replica!.memory;
        if (!entered.has(number)) parameters.get([...gradients.keys()][number]!)!.view.fill(100);
        entered.add(number);
        update();
      },
    );
  });
});

describe('a loss that is not finite', () => {
  it('leaves the states as they were', () => {
    use(
      () => undefined,
      (replica) => {
        replica.computeGradients([0]);
        expect([...replica.memory.states.get('seen')!.view]).toEqual(GRADIENT);
        replica.inputs['y']!.set([NaN, 1]);
        expect(replica.computeGradients([0])).toBeNaN();
        expect([...replica.memory.states.get('seen')!.view]).toEqual(GRADIENT);
      },
    );
  });
});

describe('isFinite', () => {
  it('looks at parameters, states and moving averages', () => {
    use(
      (graph) => t.movingAverage(graph, 0.5),
      (replica) => {
        const { parameters, states, averages } = replica.memory;
        const regions = [
          parameters.get('first')!,
          states.get('seen')!,
          averages.get('average')!.get('second')!,
        ];
        for (const { view } of regions) {
          expect(replica.isFinite()).toBe(true);
          const [kept] = view;
          for (const broken of [NaN, Infinity, -Infinity]) {
            view[0] = broken;
            expect(replica.isFinite()).toBe(false);
          }
          view[0] = kept!;
        }
      },
    );
  });
});
