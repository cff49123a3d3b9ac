/**
 * What TypeScript and the check of configuration files say of the same configurations. The type checker compiles this file: a line
 * under `@ts-expect-error` that it accepts fails `npm run typecheck`, as does a right one that it refuses.
 */
import { describe, expect, expectTypeOf, it } from 'vitest';
import type { z } from 'zod';
import { defineConfig, type DataConfig, type ModelConfig, type TrainConfig } from '../../src/cli/index.ts';
import { checkConfig } from '../../src/cli/config-check.ts';
import type { ScheduleConfig } from '../../src/cli/config.ts';
import type { dataSchemas, optimizerSchemas, scheduleSchemas } from '../../src/cli/config-schema.ts';
import type { OptimizerSpec } from '../../src/kernels/index.ts';
import { models } from '../../src/models/index.ts';

const check = (config: unknown) => checkConfig(config, { source: '/a/b.config.ts', defaultName: 'b' });
const withModel = (model: ModelConfig): TrainConfig => defineConfig({ model, data: { kind: 'mnist' } });

describe('models', () => {
  it('with options that they have are accepted by both', () => {
    const widths = [3, 4] as const;
    const right = [
      withModel('mlp'),
      withModel({ name: 'mlp' }),
      withModel({ name: 'mlp', hidden: [3], dropout: 0.1 }),
      withModel({ name: 'mlp', inputShape: [4], classes: 2, hidden: undefined }),
      withModel({ name: 'lenet', filters: [8, 16], kernel: 3 }),
      withModel({ name: 'resnet', width: 8, blocks: 1 }),
      withModel({ name: 'text-cnn', widths, filters: 100 }),
      withModel({ name: 'lstm-lm', units: 256, clipNorm: null }),
      withModel({ name: 'sampled-lm', drawn: 100 }),
      withModel({ name: 'transformer', heads: 2 }),
      withModel({ name: 'gpt', width: 128, layers: 4 }),
      withModel({ onnx: 'model.onnx', output: 'scores' }),
      withModel(({ classes = 2 }) => models.mlp.build({ inputShape: [4], classes })),
    ];
    for (const config of right) expect(() => check(config)).not.toThrow();
  });

  it('with misspelt or foreign options, or of the wrong type, are refused by both', () => {
    const wrong = [
      // @ts-expect-error misspelt
      withModel({ name: 'mlp', hiden: [3] }),
      // @ts-expect-error an option of another model
      withModel({ name: 'mlp', widths: [3] }),
      // @ts-expect-error a number instead of a list
      withModel({ name: 'mlp', hidden: 3 }),
      // @ts-expect-error a list instead of a number
      withModel({ name: 'lenet', hidden: [3] }),
      // @ts-expect-error one filter too few
      withModel({ name: 'lenet', filters: [8] }),
      // @ts-expect-error an unknown model
      withModel({ name: 'mpl' }),
      // @ts-expect-error an unknown model by its name alone
      withModel('mpl'),
      // @ts-expect-error no model at all
      withModel({ hidden: [3] }),
      // @ts-expect-error misspelt, of a file
      withModel({ onnx: 'model.onnx', outputs: 'scores' }),
    ];
    for (const config of wrong)
      expect(() => check(config)).toThrow(expect.objectContaining({ code: 'INVALID_CONFIG' }) as Error);
  });

  it('are refused in a configuration as people write it', () => {
    const config = defineConfig({
      model: {
        name: 'text-cnn',
        // @ts-expect-error misspelt
        filter: 100,
      },
      data: { kind: 'text-csv', train: 'questions.csv', testFraction: 0.1 },
    });
    expect(() => check(config)).toThrow(/model\.filter is unknown.*Did you mean "model\.filters"/);
  });
});

describe('types and schemas', () => {
  /** Schemas give lists that can be written to. */
  type Writable<T> = T extends readonly unknown[]
    ? { -readonly [K in keyof T]: Writable<T[K]> }
    : T extends object
      ? { -readonly [K in keyof T]: Writable<T[K]> }
      : T;
  type Variant<Union, Key extends string, Name> = Writable<Extract<Union, Record<Key, Name>>>;
  /** Every field, optional or not, has the same type in both. */
  type Same<A, B> = [Required<A>, keyof A] extends [Required<B>, keyof B]
    ? [Required<B>, keyof B] extends [Required<A>, keyof A]
      ? true
      : false
    : false;
  type Compared<Schemas, Union, Key extends string> = {
    [Name in keyof Schemas]: Schemas[Name] extends z.ZodType
      ? Same<z.input<Schemas[Name]>, Variant<Union, Key, Name>>
      : never;
  }[keyof Schemas];

  it('name the same fields, of the same types', () => {
    expectTypeOf<Compared<typeof dataSchemas, DataConfig, 'kind'>>().toEqualTypeOf<true>();
    expectTypeOf<Compared<typeof optimizerSchemas, OptimizerSpec, 'name'>>().toEqualTypeOf<true>();
    expectTypeOf<Compared<typeof scheduleSchemas, ScheduleConfig, 'name'>>().toEqualTypeOf<true>();
    expectTypeOf<keyof typeof dataSchemas>().toEqualTypeOf<DataConfig['kind']>();
    expectTypeOf<keyof typeof optimizerSchemas>().toEqualTypeOf<OptimizerSpec['name']>();
    expectTypeOf<keyof typeof scheduleSchemas>().toEqualTypeOf<ScheduleConfig['name']>();
  });
});
