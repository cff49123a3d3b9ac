/**
 * The configuration's fields as zod schemas: types and ranges of what a file may say. Which of several forms a field
 * has is decided from the value before it is checked, so that an error speaks of the form that was meant.
 * Invariant: the schemas accept what `TrainConfig` describes and nothing else.
 */
import { z } from 'zod';
import { MAX_LEARNERS, UPDATE_MODES } from '../learners/index.ts';
import { models } from '../models/index.ts';

const path = () => z.string().min(1);
const count = () => z.number().int().positive();
const position = () => z.number().int().min(0);
const positive = () => z.number().positive();
const fraction = () => z.number().min(0).lt(1);

const column = () =>
  z.custom<number | string>(
    (value) =>
      typeof value === 'string' ? value.trim() !== '' : Number.isInteger(value) && Number(value) >= 0,
    'expected the name of a column or its number, counted from 0',
  );

const learners = () =>
  z.custom<number | 'auto'>(
    (value) =>
      value === 'auto' || (Number.isInteger(value) && Number(value) >= 1 && Number(value) <= MAX_LEARNERS),
    `expected "auto" or a whole number from 1 to ${MAX_LEARNERS}`,
  );

export const dataSchemas = {
  mnist: z.strictObject({ kind: z.literal('mnist'), directory: path().optional() }),
  idx: z.strictObject({
    kind: z.literal('idx'),
    trainImages: path(),
    trainLabels: path(),
    testImages: path().optional(),
    testLabels: path().optional(),
    mean: z.number().optional(),
    deviation: positive().optional(),
  }),
  'text-csv': z.strictObject({
    kind: z.literal('text-csv'),
    train: path(),
    test: path().optional(),
    testFraction: fraction().optional(),
    textColumn: column().optional(),
    labelColumn: column().optional(),
    header: z.boolean().optional(),
    length: count().optional(),
    minCount: count().optional(),
    maxVocabulary: count().optional(),
    lowerCase: z.boolean().optional(),
  }),
  text: z.strictObject({
    kind: z.literal('text'),
    train: path(),
    test: path().optional(),
    unit: z.enum(['char', 'word']).optional(),
    sequenceLength: count().optional(),
  }),
} as const;

const rate = { lr: z.number().min(0).optional(), weightDecay: z.number().min(0).optional() };
const eps = z.number().min(0).optional();
const betas = z.tuple([fraction(), fraction()]).optional();

export const optimizerSchemas = {
  sgd: z.strictObject({
    ...rate,
    name: z.literal('sgd'),
    lr: z.number().min(0),
    momentum: z.number().min(0).optional(),
    dampening: z.number().optional(),
    nesterov: z.boolean().optional(),
  }),
  adagrad: z.strictObject({
    ...rate,
    name: z.literal('adagrad'),
    lrDecay: z.number().min(0).optional(),
    initialAccumulator: z.number().min(0).optional(),
    eps,
  }),
  rmsprop: z.strictObject({
    ...rate,
    name: z.literal('rmsprop'),
    alpha: fraction().optional(),
    eps,
    momentum: z.number().min(0).optional(),
    centered: z.boolean().optional(),
  }),
  adam: z.strictObject({ ...rate, name: z.literal('adam'), betas, eps, amsgrad: z.boolean().optional() }),
  adamw: z.strictObject({ ...rate, name: z.literal('adamw'), betas, eps, amsgrad: z.boolean().optional() }),
  adadelta: z.strictObject({ ...rate, name: z.literal('adadelta'), rho: fraction().optional(), eps }),
} as const;

const baseLr = z.number().min(0).optional();
const warmup = { warmupSteps: position().optional(), startFactor: z.number().min(0).optional() };
const cosine = { tMax: count().optional(), etaMin: z.number().min(0).optional() };

export const scheduleSchemas = {
  constant: z.strictObject({ name: z.literal('constant'), baseLr }),
  step: z.strictObject({ name: z.literal('step'), baseLr, stepSize: count(), gamma: positive() }),
  cosine: z.strictObject({ name: z.literal('cosine'), baseLr, ...cosine }),
  warmup_linear: z.strictObject({ name: z.literal('warmup_linear'), baseLr, ...warmup }),
  warmup_cosine: z.strictObject({ name: z.literal('warmup_cosine'), baseLr, ...warmup, ...cosine }),
  reduce: z.strictObject({
    name: z.literal('reduce'),
    baseLr,
    milestones: z.array(position()),
    factors: z.array(positive()),
  }),
} as const;

const onnxModel = z.strictObject({
  onnx: path(),
  output: z.string().optional(),
  dropout: z.boolean().optional(),
});
const modelInFile = z.strictObject({ config: path() });
const modelFunction = z.custom<(facts: never) => unknown>((value) => typeof value === 'function');

type Schemas = Readonly<Record<string, z.ZodObject>>;

/** The schema of the variant that `value[key]` names; with another name, one that lists the names. */
function variant(schemas: Schemas, key: string, value: unknown): z.ZodType {
  const name = isRecord(value) ? value[key] : undefined;
  if (typeof name === 'string' && Object.hasOwn(schemas, name)) return schemas[name]!;
  return z.looseObject({ [key]: z.enum(Object.keys(schemas)) });
}

function modelSchema(value: unknown): z.ZodType {
  if (typeof value === 'function') return modelFunction;
  if (isRecord(value) && 'onnx' in value) return onnxModel;
  if (isRecord(value) && 'config' in value) return modelInFile;
  const name = isRecord(value) ? value['name'] : undefined;
  if (typeof name !== 'string' || !Object.hasOwn(models, name)) {
    return z.looseObject({ name: z.enum(Object.keys(models)) });
  }
  // What the data decides may be left out here; the model checks again when it is built.
  const { shape } = models[name as keyof typeof models].options;
  const optional = Object.fromEntries(
    Object.entries(shape).map(([field, type]) => [field, (type as z.ZodType).optional()]),
  );
  return z.strictObject({ name: z.literal(name), ...optional });
}

/** The schema for a configuration of this form; `raw` has had its short forms written out. */
export function configSchema(raw: Readonly<Record<string, unknown>>): z.ZodObject {
  return z.strictObject({
    name: z
      .string()
      .regex(
        /^(?!\.{1,2}$)[\w.-]+$/u,
        'expected letters, digits, dots, dashes and underscores, and not . or .. alone',
      )
      .optional(),
    model: modelSchema(raw['model']),
    data: variant(dataSchemas, 'kind', raw['data']),
    optimizer: variant(optimizerSchemas, 'name', raw['optimizer']),
    schedule:
      raw['schedule'] === undefined
        ? z.undefined().optional()
        : variant(scheduleSchemas, 'name', raw['schedule']),
    batchSize: count().optional(),
    epochs: count().optional(),
    maxSteps: count().optional(),
    seed: z.number().int().optional(),
    sparseUpdates: z.enum(['exact', 'lazy']).optional(),
    clipGlobalNorm: positive().optional(),
    clipValue: positive().optional(),
    weightDecay: positive().optional(),
    movingAverage: fraction().optional(),
    checkpointEverySteps: count().optional(),
    output: path().optional(),
    // What is in it is checked by whoever starts those who train.
    on: (typeof raw['on'] === 'string' ? z.enum(['auto']) : z.looseObject({})).optional(),
    // Of files of earlier versions.
    learners: learners().optional(),
    learnerMode: z.enum(['auto', ...UPDATE_MODES]).optional(),
    workers: count().optional(),
    resources: (typeof raw['resources'] === 'string' ? path() : z.looseObject({})).optional(),
    threads: count().max(1024).optional(),
    provider: z.enum(['cpu', 'webgpu', 'cuda']).optional(),
  });
}

export function isRecord(value: unknown): value is Record<string, unknown> {
  return typeof value === 'object' && value !== null && !Array.isArray(value);
}
