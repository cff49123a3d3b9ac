/**
 * The labels of a classifier and their ids, in code-unit order, so that the ids do not depend on the order of
 * the rows. Unlike a vocabulary it has no unknown: a label that was never seen is an error.
 */
import { UsageError } from '../base/index.ts';
import { readNames } from './vocabulary.ts';

/** How many known labels an error lists. */
const LISTED = 10;

export interface LabelSetJson {
  readonly kind: 'labels';
  readonly version: 1;
  readonly labels: readonly string[];
}

/** Where a label stands, for the error message. */
export interface LabelPlace {
  readonly file?: string;
  /** From 1. */
  readonly line?: number;
}

export class LabelSet {
  readonly labels: readonly string[];
  readonly #ids: ReadonlyMap<string, number>;

  private constructor(labels: readonly string[]) {
    this.labels = Object.freeze([...labels]);
    this.#ids = new Map(labels.map((label, id) => [label, id]));
  }

  static build(labels: Iterable<string>): LabelSet {
    const distinct = [...new Set(labels)].sort((a, b) => (a < b ? -1 : 1));
    if (distinct.length === 0 || distinct[0] === '') {
      throw new UsageError(
        'INVALID_DATA',
        'A label set needs at least one label and no empty one; give labels.',
        {
          count: distinct.length,
        },
      );
    }
    return new LabelSet(distinct);
  }

  get size(): number {
    return this.labels.length;
  }

  /** The id of a label, or UNKNOWN_LABEL naming the place. */
  id(label: string, place: LabelPlace = {}): number {
    const id = this.#ids.get(label);
    if (id === undefined) throw this.#unknown(label, place);
    return id;
  }

  label(id: number): string {
    const label = this.labels[id];
    if (label === undefined) {
      throw new UsageError('OUT_OF_BOUNDS', `There is no label ${id}; ids go from 0 to ${this.size - 1}.`, {
        id,
        size: this.size,
      });
    }
    return label;
  }

  toJSON(): LabelSetJson {
    return { kind: 'labels', version: 1, labels: this.labels };
  }

  /** Reads the parsed JSON form, ids unchanged; `source` is the name used in errors. */
  static fromJSON(value: unknown, source = 'the label set'): LabelSet {
    const labels = readNames(value, 'labels', 'labels', source);
    if (labels.length === 0) {
      throw new UsageError(
        'INVALID_DATA',
        `Cannot read ${source}: it has no label. Use the file that was written with the model, unchanged.`,
        { source },
      );
    }
    return new LabelSet(labels);
  }

  #unknown(label: string, { file, line }: LabelPlace): UsageError {
    const listed = this.labels.slice(0, LISTED).map(shorten).join(', ');
    const known = this.size > LISTED ? `${listed} and ${this.size - LISTED} more` : listed;
    const place = [file, line === undefined ? undefined : `line ${line}`].filter(
      (part) => part !== undefined,
    );
    const where = place.length === 0 ? '' : `${place.join(', ')}: `;
    return new UsageError(
      'UNKNOWN_LABEL',
      `${where}the label ${shorten(label)} was never seen in training. Known labels: ${known}. ` +
        `Correct the label or add training rows with it${line === 1 ? '; if line 1 holds the names of the columns, set header: true or remove it' : ''}.`,
      { label, file, line, known: this.size },
    );
  }
}

function shorten(label: string): string {
  return JSON.stringify(label.length > 40 ? `${label.slice(0, 40)}…` : label);
}
