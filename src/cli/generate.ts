/**
 * Continues a text with a trained language model, one unit after the other. Each unit is drawn from the model's
 * distribution; the same seed gives the same text. Invariant: padding and unknown are never drawn.
 */
import { Random, UsageError } from '../base/index.ts';
import { PADDING_ID, UNKNOWN_ID, type TextUnit, type Vocabulary } from '../data/index.ts';
import type { Replica } from '../runtime/index.ts';

export interface GenerateOptions {
  /** Units to add. */
  readonly length: number;
  /** Below 1 the likely becomes likelier; 0 always takes the likeliest. */
  readonly temperature: number;
  readonly seed: number;
  readonly unit: TextUnit;
  /** Stops early. */
  readonly signal?: AbortSignal;
}

/** Yields the text piece by piece, the prompt not included. */
export function* generate(
  replica: Replica,
  vocabulary: Vocabulary,
  prompt: string,
  options: GenerateOptions & { readonly average: string | undefined },
): Generator<string> {
  const { length, temperature, unit, signal } = options;
  if (!(temperature >= 0) || !Number.isFinite(temperature)) {
    throw new UsageError(
      'INVALID_ARGUMENT',
      `The temperature is ${temperature}; give a number of 0 or more.`,
      {
        temperature,
      },
    );
  }
  const tokens = inputTokens(replica);
  const window = tokens.length / replica.memory.sampleIds.length;
  const random = new Random(options.seed);
  const evaluator = replica.evaluator(['logits'], options.average);
  // A model needs something to go on from; the most frequent unit is the least surprising.
  const ids = [...splitPrompt(prompt, unit)].map((one) => vocabulary.id(one));
  if (ids.length === 0) ids.push(UNKNOWN_ID + 1);
  try {
    for (let i = 0; i < length && !signal?.aborted; i++) {
      const recent = ids.slice(-window);
      tokens.fill(PADDING_ID, 0, window);
      tokens.set(recent, 0);
      const [logits] = evaluator.run(1);
      const classes = logits!.length / window;
      const id = draw(
        (logits!.view as Float32Array).subarray((recent.length - 1) * classes),
        classes,
        temperature,
        random,
      );
      ids.push(id);
      yield print(vocabulary.word(id), unit);
    }
  } finally {
    evaluator.close();
  }
}

function inputTokens(replica: Replica): Int32Array {
  for (const [name, region] of replica.memory.inputs) {
    if (name !== 'targets' && region.dtype === 'int32') return region.view as Int32Array;
  }
  throw new UsageError(
    'INVALID_ARGUMENT',
    'The model takes no tokens, so it cannot continue a text. Use a language model.',
  );
}

function splitPrompt(prompt: string, unit: TextUnit): Iterable<string> {
  return unit === 'char' ? prompt : prompt.split(/\s+/u).filter((word) => word !== '');
}

function print(word: string, unit: TextUnit): string {
  if (unit === 'char') return word;
  return word === '<eos>' ? '\n' : `${word} `;
}

/** Draws an id from the softmax of the first `classes` logits at a temperature. */
export function draw(logits: Float32Array, classes: number, temperature: number, random: Random): number {
  let best = UNKNOWN_ID + 1;
  for (let id = best; id < classes; id++) if (logits[id]! > logits[best]!) best = id;
  if (temperature === 0) return best;
  const weights = new Float64Array(classes);
  let sum = 0;
  for (let id = UNKNOWN_ID + 1; id < classes; id++) {
    weights[id] = Math.exp((logits[id]! - logits[best]!) / temperature);
    sum += weights[id]!;
  }
  let left = random.uniform() * sum;
  for (let id = UNKNOWN_ID + 1; id < classes; id++) {
    left -= weights[id]!;
    if (left < 0) return id;
  }
  return best;
}
