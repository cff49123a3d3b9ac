/**
 * One node of an ONNX file as an import rule sees it: checked access to inputs and attributes. Every attribute that
 * a rule does not read is refused afterwards, so that nothing of a file is silently ignored.
 * Invariant: whatever the file holds, an access gives a value of the stated type or a UsageError naming the node.
 */
import type { UsageError } from '../../../base/index.ts';
import type { Graph, Tensor } from '../../graph.ts';
import { isBatch, type Dim } from '../../shape.ts';
import type { OnnxAttribute, OnnxNode } from '../proto.ts';
import { broken, quoted, unsupported, type Place } from '../tensor-proto.ts';
import type { ImportSession } from './session.ts';
import { numbersOf, type Known, type Value } from './value.ts';

export type ImportResult = Value | Tensor;
/** Translates a node; several outputs as a list. */
export type ImportRule = (node: ImportNode) => ImportResult | readonly ImportResult[];
export type ImportTable = Readonly<Record<string, ImportRule>>;

/** How errors name a node; operator names come from the file, so odd ones are quoted. */
export function placeOf(source: string, node: OnnxNode, index: number): Place {
  const operator = /^\w{1,40}$/.test(node.opType) ? node.opType : quoted(node.opType);
  const domain = node.domain ? `, domain ${quoted(node.domain)}` : '';
  return { source, what: `node ${index} ${quoted(node.name)} (${operator}${domain})` };
}

export class ImportNode {
  readonly session: ImportSession;
  readonly place: Place;
  readonly outputCount: number;
  readonly #node: OnnxNode;
  readonly #inputs: readonly (Value | undefined)[];
  readonly #read = new Set<string>();

  constructor(session: ImportSession, node: OnnxNode, index: number, inputs: readonly (Value | undefined)[]) {
    this.session = session;
    this.#node = node;
    this.#inputs = inputs;
    this.outputCount = node.outputs.length;
    this.place = placeOf(session.source, node, index);
  }

  get graph(): Graph {
    return this.session.graph;
  }

  get inputCount(): number {
    return this.#inputs.length;
  }

  has(input: number): boolean {
    return this.#inputs[input] !== undefined;
  }

  value(input: number): Value {
    const value = this.#inputs[input];
    if (!value) throw this.broken(`has no input ${input}`);
    return value;
  }

  /** The value if it is known now. */
  known(input: number): Known | undefined {
    const value = this.value(input);
    return value.kind === 'known' ? value : undefined;
  }

  tensor(input: number): Tensor {
    return this.session.tensorOf(this.value(input), this.place);
  }

  tensors(): Tensor[] {
    return this.#inputs.map((_, i) => this.tensor(i));
  }

  /** Integers or batch sizes that must be known at import. */
  dims(input: number, what: string): readonly Dim[] {
    const known = this.known(input);
    if (known && known.dtype === 'int32' && known.shape.length <= 1) return known.values;
    throw this.unsupported(
      `takes ${what} from a value that is computed; they must be constants of type int64`,
    );
  }

  /** Plain integers that must be known at import. */
  integers(input: number, what: string): number[] {
    const dims = this.dims(input, what);
    if (dims.some(isBatch)) throw this.unsupported(`takes ${what} from the batch size`);
    return [...(dims as number[])];
  }

  /** One number that must be known at import. */
  scalar(input: number, what: string): number {
    const number = this.singleNumber(input);
    if (number !== undefined) return number;
    throw this.unsupported(`takes ${what} from a value that is computed; it must be one constant number`);
  }

  /** The number, if the input is a single constant one. */
  singleNumber(input: number): number | undefined {
    const value = this.value(input);
    const numbers =
      value.kind === 'known' ? numbersOf(value) : value.kind === 'weight' ? value.data : undefined;
    return numbers?.length === 1 ? numbers[0] : undefined;
  }

  int(name: string, fallback?: number): number {
    return this.#attribute(name, 'int', fallback) as number;
  }

  float(name: string, fallback?: number): number {
    return this.#attribute(name, 'float', fallback) as number;
  }

  text(name: string, fallback?: string): string {
    return this.#attribute(name, 'string', fallback) as string;
  }

  ints(name: string): readonly number[] | undefined {
    return this.hasAttribute(name) ? (this.#attribute(name, 'ints') as readonly number[]) : undefined;
  }

  attribute(name: string): OnnxAttribute | undefined {
    this.#read.add(name);
    return this.#node.attributes[name];
  }

  hasAttribute(name: string): boolean {
    return this.#node.attributes[name] !== undefined;
  }

  /** Attributes that do not change what is imported. */
  ignore(...names: readonly string[]): void {
    for (const name of names) this.#read.add(name);
  }

  /** A flag that must have the one value that is supported. */
  only(name: string, value: number | string): void {
    const found = this.attribute(name);
    if (found && found.value !== value) {
      throw this.unsupported(
        `has ${name} = ${JSON.stringify(found.value)}; only ${JSON.stringify(value)} is supported`,
      );
    }
  }

  /** The first attribute that no rule has read. */
  unreadAttribute(): string | undefined {
    return Object.keys(this.#node.attributes).find((name) => !this.#read.has(name));
  }

  broken(problem: string): UsageError {
    return broken(this.place, problem);
  }

  unsupported(problem: string): UsageError {
    return unsupported(this.place, problem);
  }

  #attribute(name: string, type: OnnxAttribute['type'], fallback?: unknown): unknown {
    const found = this.attribute(name);
    if (!found) {
      if (fallback === undefined) throw this.broken(`lacks the attribute ${name}`);
      return fallback;
    }
    if (found.type !== type)
      throw this.broken(`has the attribute ${name} of type ${found.type}, expected ${type}`);
    return found.value;
  }
}
