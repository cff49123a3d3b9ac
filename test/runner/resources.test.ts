/** Resources of a run: what is filled in, and what is refused with words that help. */
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { availableParallelism, tmpdir } from 'node:os';
import { join } from 'node:path';
import { describe, expect, it } from 'vitest';
import * as g from '../../src/graph/index.ts';
import { checkModel } from '../../src/runner/model-checks.ts';
import { resolveResources } from '../../src/runner/resources.ts';

const optimizer = { name: 'sgd', lr: 0.1 } as const;

describe('resources', () => {
  it('are all processors of this machine by default', () => {
    expect(resolveResources({})).toMatchObject({ workers: availableParallelism(), transport: 'auto' });
  });

  it('reach other machines by ssh unless they say how', () => {
    const { workers, machines } = resolveResources({
      machines: [
        { name: 'a', workers: 2, address: '10.0.0.1' },
        { name: 'b', workers: 3 },
        { name: 'c', command: ['ip', 'netns', 'exec', 'c'] },
      ],
    });
    expect(workers).toBe(6);
    const [here, b, c] = machines.map(({ prefix }) => prefix);
    expect(here).toBeUndefined();
    expect([b!.at(0), b!.at(-1)]).toEqual(['ssh', 'b']);
    // It has no terminal to ask at.
    expect(b).toContain('BatchMode=yes');
    expect(c).toEqual(['ip', 'netns', 'exec', 'c']);
  });

  it('are refused in words: what is missing, what was found and what was expected', () => {
    const given = (resources: object) => () => resolveResources(resources);
    expect(given({ machines: [{ workers: 1 }] })).toThrow(
      /^resources: machines\.0\.name is missing; expected a string; give workers/,
    );
    expect(given({ workers: 'two' })).toThrow(/^resources: workers is "two"; expected a number; give/);
  });

  it('may be a file', () => {
    const folder = mkdtempSync(join(tmpdir(), 'resources-'));
    try {
      const path = join(folder, 'resources.json');
      writeFileSync(path, JSON.stringify({ workers: 3, transport: 'tcp' }));
      expect(resolveResources(path)).toMatchObject({ workers: 3, transport: 'tcp' });
      writeFileSync(path, '{"workers": 0}');
      expect(() => resolveResources(path)).toThrow(/resources\.json: workers is 0; expected at least 1/);
      writeFileSync(path, '{"workers": ');
      expect(() => resolveResources(path)).toThrow(/resources\.json are no JSON: .*correct the file/);
    } finally {
      rmSync(folder, { recursive: true });
    }
  });

  it.each([
    [{ workers: 2, machines: [{ name: 'a' }] }, /workers belongs to each of the machines/],
    [{ machines: [{ name: 'a' }, { name: 'b' }] }, /a needs an address/],
    [{ worker: 2 }, /resources/],
    ['/nowhere/resources.json', /cannot be read: ENOENT.*check the path/],
  ] as const)('%j are refused', (given, words) => {
    expect(() => resolveResources(given as never)).toThrow(words);
  });
});

describe('a model for several workers', () => {
  const build = () => {
    const graph = new g.Graph();
    const x = graph.input('x', [g.N, 4]);
    const unused = graph.parameter('unused', [3], g.values([1, 2, 3]));
    const logits = g.linear(x, 2);
    const loss = g.crossEntropy(logits, graph.input('labels', [g.N], 'int32'));
    return { unused, model: { graph, loss, outputs: { logits } } };
  };

  it('must have a loss, and enough samples for all', () => {
    const { model } = build();
    expect(() => checkModel({ ...model, loss: undefined as never }, { optimizer }, 2)).toThrow(/no loss/);
    const config = { optimizer, batchSize: 2, unusedParameters: 'skip' } as const;
    expect(() => checkModel(model, config, 3)).toThrow(/batch of 2 samples cannot be shared by 3 workers/);
    expect(() => checkModel(model, config, 2)).not.toThrow();
  });

  it('must use all its parameters, unless it is said that it need not', () => {
    const { model } = build();
    expect(() => checkModel(model, { optimizer }, 2)).toThrow(/does not depend on unused/);
    expect(() => checkModel(model, { optimizer, unusedParameters: 'skip' }, 2)).not.toThrow();
  });
});
