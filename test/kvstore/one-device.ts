/**
 * One device that trains with Adam or SGD with momentum, written out in float64: what stores with many workers are compared
 * with. Knows nothing of kernels or servers. Invariant: rows that are lazy are left alone, with their slots, unless
 * they are touched.
 */
import type { OptimizerSpec } from '../../src/kernels/index.ts';
import type { RowsMode } from '../../src/server/index.ts';

interface State {
  readonly value: Float64Array;
  readonly first: Float64Array;
  readonly second: Float64Array;
  t: number;
}

export class OneDevice {
  readonly #spec: OptimizerSpec;
  readonly #rowLength: number;
  readonly #rowsMode: RowsMode;
  readonly #states: ReadonlyMap<string, State>;

  constructor(
    spec: OptimizerSpec,
    values: Readonly<Record<string, Float32Array>>,
    { rowLength, rowsMode }: { readonly rowLength: number; readonly rowsMode: RowsMode },
  ) {
    this.#spec = spec;
    this.#rowLength = rowLength;
    this.#rowsMode = rowsMode;
    this.#states = new Map(
      Object.entries(values).map(([key, { length }]) => {
        const slots = { first: new Float64Array(length), second: new Float64Array(length) };
        return [key, { value: Float64Array.from(values[key]!), ...slots, t: 0 }];
      }),
    );
  }

  step(key: string, gradient: Float64Array, scale: number, lr: number): void {
    const state = this.#states.get(key)!;
    state.t++;
    for (let i = 0; i < gradient.length; i++) this.#update(state, i, scale * gradient[i]!, lr);
  }

  stepRows(
    key: string,
    touched: ReadonlySet<number>,
    gradient: Float64Array,
    scale: number,
    lr: number,
  ): void {
    if (this.#rowsMode === 'exact') return this.step(key, gradient, scale, lr);
    const state = this.#states.get(key)!;
    state.t++;
    for (let i = 0; i < gradient.length; i++) {
      if (touched.has(Math.floor(i / this.#rowLength))) this.#update(state, i, scale * gradient[i]!, lr);
    }
  }

  valueOf(key: string): Float64Array {
    return this.#states.get(key)!.value;
  }

  /** The largest difference of an element. */
  distance(key: string, values: Float32Array): number {
    const { value } = this.#states.get(key)!;
    return values.reduce((most, one, i) => Math.max(most, Math.abs(one - value[i]!)), 0);
  }

  #update({ value, first, second, t }: State, i: number, gradient: number, lr: number): void {
    if (this.#spec.name === 'sgd') {
      const { momentum = 0 } = this.#spec;
      first[i] = t === 1 ? gradient : momentum * first[i]! + gradient;
      value[i]! -= lr * first[i];
      return;
    }
    const [b1, b2, eps] = [0.9, 0.999, 1e-8];
    first[i] = b1 * first[i]! + (1 - b1) * gradient;
    second[i] = b2 * second[i]! + (1 - b2) * gradient * gradient;
    const corrected = Math.sqrt(second[i] / (1 - b2 ** t)) + eps;
    value[i]! -= ((lr / (1 - b1 ** t)) * first[i]) / corrected;
  }
}
