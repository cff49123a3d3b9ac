/**
 * Words and their ids. Id 0 is padding, 1 is any unknown word; the others go by falling count, equal counts by
 * code-unit order, so the ids do not depend on the order of the texts. Counts nothing after it is built.
 * Invariant: ids are dense, every word has one id and the reverse; the JSON form gives the same ids back.
 */
import { UsageError } from '../base/index.ts';

export const PADDING_ID = 0;
export const UNKNOWN_ID = 1;
const RESERVED = ['<pad>', '<unk>'] as const;

export interface VocabularyOptions {
  /** Words that occur less often are unknown. Default 1. */
  readonly minCount?: number;
  /** The largest number of ids, the two reserved ones included. Default: no limit. */
  readonly maxSize?: number;
}

export interface VocabularyJson {
  readonly kind: 'vocabulary';
  readonly version: 1;
  /** The words of the ids 2, 3, ... */
  readonly words: readonly string[];
}

export class Vocabulary {
  readonly #words: readonly string[];
  readonly #ids: ReadonlyMap<string, number>;

  private constructor(words: readonly string[]) {
    this.#words = [...RESERVED, ...words];
    this.#ids = new Map(words.map((word, index) => [word, index + RESERVED.length]));
  }

  /** Builds the vocabulary of tokenised texts: give it the training part only. */
  static build(texts: Iterable<Iterable<string>>, options: VocabularyOptions = {}): Vocabulary {
    const { minCount = 1, maxSize = Infinity } = options;
    if (!(minCount >= 1) || !(maxSize > RESERVED.length)) {
      throw new UsageError(
        'INVALID_ARGUMENT',
        `A vocabulary with minCount ${minCount} and maxSize ${maxSize} cannot be built; ` +
          `give a minCount of at least 1 and a maxSize above ${RESERVED.length}.`,
        { minCount, maxSize },
      );
    }
    const counts = new Map<string, number>();
    for (const text of texts) {
      for (const word of text) counts.set(word, (counts.get(word) ?? 0) + 1);
    }
    for (const reserved of ['', ...RESERVED]) counts.delete(reserved);
    const words = [...counts]
      .filter(([, count]) => count >= minCount)
      .sort(([a, countA], [b, countB]) => countB - countA || (a < b ? -1 : 1))
      .slice(0, maxSize - RESERVED.length)
      .map(([word]) => word);
    return new Vocabulary(words);
  }

  /** The number of ids, the reserved ones included. */
  get size(): number {
    return this.#words.length;
  }

  id(word: string): number {
    return this.#ids.get(word) ?? UNKNOWN_ID;
  }

  word(id: number): string {
    const word = this.#words[id];
    if (word === undefined) {
      throw new UsageError(
        'OUT_OF_BOUNDS',
        `The vocabulary has no id ${id}; its ids go from 0 to ${this.size - 1}.`,
        { id, size: this.size },
      );
    }
    return word;
  }

  /** Writes the ids of the words into the whole of `target`: cut off or padded at the end. */
  encode(words: readonly string[], target: Int32Array): void {
    target.fill(PADDING_ID);
    const count = Math.min(words.length, target.length);
    for (let i = 0; i < count; i++) target[i] = this.id(words[i]!);
  }

  toJSON(): VocabularyJson {
    return { kind: 'vocabulary', version: 1, words: this.#words.slice(RESERVED.length) };
  }

  /** Reads the parsed JSON form; `source` is the name used in errors. */
  static fromJSON(value: unknown, source = 'the vocabulary'): Vocabulary {
    const words = readNames(value, 'vocabulary', 'words', source);
    const reserved = words.find((word) => (RESERVED as readonly string[]).includes(word));
    if (reserved !== undefined) {
      throw badNames(source, `"words" contains the reserved ${reserved}`);
    }
    return new Vocabulary(words);
  }
}

/** The list of distinct names in `{ kind, version: 1, [field]: [...] }`, or INVALID_DATA. */
export function readNames(value: unknown, kind: string, field: string, source: string): string[] {
  const record = typeof value === 'object' && value !== null ? (value as Record<string, unknown>) : {};
  if (record.kind !== kind || record.version !== 1) {
    throw badNames(source, `expected "kind": "${kind}" and "version": 1`);
  }
  const names = record[field];
  if (!Array.isArray(names)) throw badNames(source, `"${field}" is not a list`);
  const seen = new Set<string>();
  for (const [index, name] of names.entries()) {
    if (typeof name !== 'string' || name === '') {
      throw badNames(source, `"${field}[${index}]" is not a non-empty string`);
    }
    if (seen.has(name)) throw badNames(source, `"${field}[${index}]" repeats ${JSON.stringify(name)}`);
    seen.add(name);
  }
  return [...seen];
}

function badNames(source: string, fault: string): UsageError {
  return new UsageError(
    'INVALID_DATA',
    `Cannot read ${source}: ${fault}. Use the file that was written with the model, unchanged.`,
    { source },
  );
}
