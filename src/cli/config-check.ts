/**
 * Checks a configuration and says what is wrong: the file, each field by its path, what was expected and found, and
 * for an unknown field the nearest known one. Reads no files.
 */
import { dirname, resolve } from 'node:path';
import type { z } from 'zod';
import { didYouMean, expectation, printValue, UsageError, valueAt } from '../base/index.ts';
import type { OptimizerSpec } from '../kernels/index.ts';
import type { DataConfig, ModelFunction, ResolvedConfig, TrainConfig } from './config.ts';
import { EARLIER_FIELDS, onOfFields, type EarlierFields } from './who-trains.ts';
import { configSchema, isRecord } from './config-schema.ts';

export interface CheckOptions {
  /** Absolute path of the file, or the name of an example. */
  readonly source: string;
  /** Folder that relative paths start from. Default: that of the file. */
  readonly folder?: string;
  /** Used if the configuration names itself not. */
  readonly defaultName: string;
}

const DEFAULTS = { batchSize: 32, epochs: 10, seed: 0 } as const;
const DEFAULT_OPTIMIZER: OptimizerSpec = { name: 'adam', lr: 0.001 };

export function checkConfig(given: unknown, options: CheckOptions): ResolvedConfig {
  const { source, folder = dirname(options.source) } = options;
  if (!isRecord(given)) {
    throw invalid(
      source,
      [`expected an object with model and data, got ${printValue(given)}`],
      'Export one with defineConfig',
    );
  }
  const raw = writeOut(given);
  const schema = configSchema(raw);
  const result = schema.safeParse(raw);
  if (!result.success) {
    const faults = result.error.issues.flatMap((issue) => describeIssue(issue, raw, schema));
    throw invalid(source, faults, 'Correct the fields named');
  }
  const { workers, resources, learners, learnerMode, ...config } = result.data as unknown as TrainConfig &
    EarlierFields & { readonly optimizer: OptimizerSpec };
  const earlier = { workers, resources, learners, learnerMode };
  const both =
    config.on === undefined ? undefined : EARLIER_FIELDS.find((name) => earlier[name] !== undefined);
  if (both !== undefined) {
    throw invalid(source, [`the fields on and ${both} are both there`], 'Say who trains in on alone');
  }
  return {
    ...DEFAULTS,
    ...withoutUndefined(config),
    name: config.name ?? options.defaultName,
    model: absoluteModel(config.model, source, folder),
    data: absoluteData(config.data, folder),
    on: onOfFields(config.on, earlier, folder) ?? 'auto',
    ...(config.output === undefined ? {} : { output: resolve(folder, config.output) }),
  } as ResolvedConfig;
}

/** Short forms in full: a model, optimizer or schedule by its name alone. */
function writeOut(given: Record<string, unknown>): Record<string, unknown> {
  const named = (value: unknown) => (typeof value === 'string' ? { name: value } : value);
  const raw = withoutUndefined(given);
  raw['optimizer'] = raw['optimizer'] === undefined ? DEFAULT_OPTIMIZER : named(raw['optimizer']);
  for (const field of ['model', 'schedule']) if (field in raw) raw[field] = named(raw[field]);
  return raw;
}

function withoutUndefined(value: object): Record<string, unknown> {
  return Object.fromEntries(Object.entries(value).filter(([, entry]) => entry !== undefined));
}

function absoluteModel(model: unknown, source: string, folder: string): ResolvedConfig['model'] {
  if (typeof model === 'function') return { config: source, build: model as ModelFunction };
  const entry = model as ResolvedConfig['model'];
  if ('onnx' in entry && typeof entry.onnx === 'string')
    return { ...entry, onnx: resolve(folder, entry.onnx) };
  return entry;
}

const PATH_FIELDS = ['directory', 'train', 'test', 'trainImages', 'trainLabels', 'testImages', 'testLabels'];

function absoluteData(data: DataConfig, folder: string): DataConfig {
  const entries = Object.entries(data).map(([field, value]) => [
    field,
    PATH_FIELDS.includes(field) ? resolve(folder, value as string) : (value as unknown),
  ]);
  return Object.fromEntries(entries) as DataConfig;
}

/** What config.json holds: a model function is named by its file. */
export function toJson(config: ResolvedConfig): unknown {
  if (!('build' in config.model)) return config;
  return { ...config, model: { config: config.model.config } };
}

type Issue = z.core.$ZodIssue;

function describeIssue(issue: Issue, raw: unknown, schema: z.ZodType): string[] {
  const path = issue.path.map(String);
  const actual = valueAt(raw, path);
  const field = path.join('.');
  if (issue.code === 'unrecognized_keys') {
    const known = fieldsAt(schema, path);
    return issue.keys.map((key) => {
      const hint = didYouMean(key, known, path.map((part) => `${part}.`).join(''));
      const listed = hint === '' ? ` Known here: ${known.join(', ')}.` : '';
      return `the field ${[...path, key].join('.')} is unknown.${hint}${listed}`;
    });
  }
  if (actual === undefined) return [`the field ${field} is missing; expected ${expectation(issue)}`];
  const hint =
    issue.code === 'invalid_value' && typeof actual === 'string'
      ? didYouMean(actual, issue.values.map(String))
      : '';
  return [`the field ${field} is ${printValue(actual)}; expected ${expectation(issue)}.${hint}`];
}

function fieldsAt(schema: z.ZodType, path: readonly string[]): string[] {
  let at: z.ZodType | undefined = schema;
  for (const part of path) at = (at as Partial<z.ZodObject>).shape?.[part] as z.ZodType | undefined;
  return Object.keys((at as Partial<z.ZodObject> | undefined)?.shape ?? {});
}

function invalid(source: string, faults: readonly string[], next: string): UsageError {
  const listed = faults
    .map((fault) => fault.replace(/\.$/, ''))
    .reduce((text, fault) =>
      text.endsWith('?') ? `${text} ${fault[0]!.toUpperCase()}${fault.slice(1)}` : `${text}; ${fault}`,
    );
  const end = listed.endsWith('?') ? '' : '.';
  return new UsageError('INVALID_CONFIG', `${source}: ${listed}${end} ${next}.`, { source, faults });
}
