/**
 * Lowering of LSTM and GRU, unrolled over their steps. The input product of all steps is one Gemm; a step then
 * costs one Gemm with its bias added for free and a few elementwise operations. Backward: everything that does
 * not depend on the recurrence (slopes of the gates) is computed for all steps at once, and the weight gradients
 * are one product over all steps instead of a sum of one for each.
 */
import type { BackwardOperations, NeuralOperations } from '../../catalogue.ts';
import type { Shape } from '../../shape.ts';
import type { Emitter } from '../emitter.ts';
import type { LoweringTable } from './rule.ts';

type Names =
  | Extract<keyof NeuralOperations, 'lstm' | 'gru'>
  | Extract<keyof BackwardOperations, 'lstm_grad' | 'gru_grad'>;

/** Slices `[T, N, width]` (or its flat form) into T values of `[N, width]`. */
function steps(e: Emitter, sequence: string, shape: Shape): string[] {
  const [count, batch, width] = shape as [number, Shape[number], number];
  if (count === 1) return [e.reshape(sequence, [batch, width])];
  const cube = e.reshape(sequence, shape);
  return e
    .multi('Split', [cube, e.ints(Array.from({ length: count }, () => 1))], count, { axis: 0 })
    .map((step) => e.reshape(step, [batch, width]));
}

/** Joins values of `[N, width]` into `[T * N, width]`. */
function join(e: Emitter, values: readonly string[]): string {
  return values.length === 1 ? values[0]! : e.op('Concat', values, { axis: 0 });
}

function splitColumns(e: Emitter, value: string, widths: readonly number[]): string[] {
  return e.multi('Split', [value, e.ints(widths)], widths.length, { axis: 1 });
}

function transposed(e: Emitter, matrix: string): string {
  return e.op('Transpose', [matrix], { perm: [1, 0] });
}

const oneMinus = (e: Emitter, value: string) => e.op('Sub', [e.scalar(1), value]);
/** The slope of a sigmoid from its value. */
const sigmoidSlope = (e: Emitter, value: string) => e.op('Mul', [value, oneMinus(e, value)]);
/** The slope of tanh from its value. */
const tanhSlope = (e: Emitter, value: string) => oneMinus(e, e.op('Mul', [value, value]));

export const recurrentLowering: LoweringTable<Names> = {
  lstm: (e, [x, h0, c0, wIh, wHh, bIh, bHh], { inputs, outputs }) => {
    const [count, batch, size] = inputs[0]!.shape as [number, Shape[number], number];
    const hidden = inputs[1]!.shape[1] as number;
    const flat = e.reshape(x!, [-1, size]);
    const projected = e.op('Gemm', [flat, wIh!, e.op('Add', [bIh!, bHh!])], { transB: 1 });
    const recurrent = transposed(e, wHh!);
    const gatesOfStep: string[] = [];
    const cellsOfStep: string[] = [];
    const outputsOfStep: string[] = [];
    let [h, c] = [h0!, c0!];
    for (const input of steps(e, projected, [count, batch, 4 * hidden])) {
      const [i, f, g, o] = splitColumns(e, e.op('Gemm', [h, recurrent, input]), [
        hidden,
        hidden,
        hidden,
        hidden,
      ]);
      const gates = [e.op('Sigmoid', [i!]), e.op('Sigmoid', [f!]), e.op('Tanh', [g!]), e.op('Sigmoid', [o!])];
      c = e.op('Add', [e.op('Mul', [gates[1]!, c]), e.op('Mul', [gates[0]!, gates[2]!])]);
      h = e.op('Mul', [gates[3]!, e.op('Tanh', [c])]);
      gatesOfStep.push(e.op('Concat', gates, { axis: 1 }));
      cellsOfStep.push(c);
      outputsOfStep.push(h);
    }
    const sequence = (values: readonly string[], index: number) =>
      e.reshape(join(e, values), outputs[index]!.shape);
    return [sequence(outputsOfStep, 0), h, c, sequence(gatesOfStep, 3), sequence(cellsOfStep, 4)];
  },

  lstm_grad: (e, [dy, dhLast, dcLast, x, h0, c0, wIh, wHh, y, gates, cells], { inputs }) => {
    const [count, batch, hidden] = inputs[0]!.shape as [number, Shape[number], number];
    const size = inputs[3]!.shape[2] as number;
    const rows = (value: string, width: number) => e.reshape(value, [-1, width]);
    const [i, f, g, o] = splitColumns(e, rows(gates!, 4 * hidden), [hidden, hidden, hidden, hidden]) as [string, string, string, string]; // prettier-ignore
    const before = (sequence: string, first: string) => {
      if (count === 1) return first;
      const earlier = e.op('Slice', [sequence, e.ints([0]), e.ints([count - 1]), e.ints([0])]);
      return e.op('Concat', [first, rows(earlier, hidden)], { axis: 0 });
    };
    const squashed = e.op('Tanh', [rows(cells!, hidden)]);
    // What a unit of dc (of dh for the output gate) does to each gate before its activation, for all steps.
    const toInput = e.op('Mul', [g, sigmoidSlope(e, i)]);
    const toForget = e.op('Mul', [before(cells!, c0!), sigmoidSlope(e, f)]);
    const toCandidate = e.op('Mul', [i, tanhSlope(e, g)]);
    const fromCell = e.op('Concat', [toInput, toForget, toCandidate], { axis: 1 });
    const toOutput = e.op('Mul', [squashed, sigmoidSlope(e, o)]);
    const toCell = e.op('Mul', [o, tanhSlope(e, squashed)]);

    const perStep = (value: string, width: number) => steps(e, value, [count, batch, width]);
    const dyOf = perStep(dy!, hidden);
    const fromCellOf = steps(e, fromCell, [count, batch, 3 * hidden]).map((v) =>
      e.reshape(v, [batch, 3, hidden]),
    );
    const toOutputOf = perStep(toOutput, hidden);
    const toCellOf = perStep(toCell, hidden);
    const forgetOf = perStep(f, hidden);
    const dGatesOf: string[] = new Array<string>(count);
    let [dh, dc] = [dhLast!, dcLast!];
    for (let t = count - 1; t >= 0; t--) {
      dh = e.op('Add', [dyOf[t]!, dh]);
      dc = e.op('Add', [dc, e.op('Mul', [dh, toCellOf[t]!])]);
      const three = e.op('Mul', [fromCellOf[t]!, e.reshape(dc, [batch, 1, hidden])]);
      const fourth = e.op('Mul', [toOutputOf[t]!, dh]);
      dGatesOf[t] = e.op('Concat', [e.reshape(three, [batch, 3 * hidden]), fourth], { axis: 1 });
      dh = e.op('MatMul', [dGatesOf[t]!, wHh!]);
      dc = e.op('Mul', [dc, forgetOf[t]!]);
    }
    const dGates = join(e, dGatesOf);
    const dx = e.reshape(e.op('MatMul', [dGates, wIh!]), inputs[3]!.shape);
    const dwIh = e.op('Gemm', [dGates, rows(x!, size)], { transA: 1 });
    const dwHh = e.op('Gemm', [dGates, before(y!, h0!)], { transA: 1 });
    const db = e.op('ReduceSum', [dGates, e.ints([0])], { keepdims: 0 });
    return [dx, dh, dc, dwIh, dwHh, db];
  },

  gru: (e, [x, h0, wIh, wHh, bIh, bHh], { inputs, outputs }) => {
    const [count, batch, size] = inputs[0]!.shape as [number, Shape[number], number];
    const hidden = inputs[1]!.shape[1] as number;
    const flat = e.reshape(x!, [-1, size]);
    const projected = e.op('Gemm', [flat, wIh!, bIh!], { transB: 1 });
    const recurrent = transposed(e, wHh!);
    const keptOfStep: string[] = [];
    const outputsOfStep: string[] = [];
    let h = h0!;
    for (const input of steps(e, projected, [count, batch, 3 * hidden])) {
      const [inputRz, inputN] = splitColumns(e, input, [2 * hidden, hidden]);
      const [hiddenRz, hiddenN] = splitColumns(e, e.op('Gemm', [h, recurrent, bHh!]), [2 * hidden, hidden]);
      const rz = e.op('Sigmoid', [e.op('Add', [inputRz!, hiddenRz!])]);
      const [r, z] = splitColumns(e, rz, [hidden, hidden]);
      const n = e.op('Tanh', [e.op('Add', [inputN!, e.op('Mul', [r!, hiddenN!])])]);
      h = e.op('Add', [n, e.op('Mul', [z!, e.op('Sub', [h, n])])]);
      keptOfStep.push(e.op('Concat', [rz, n, hiddenN!], { axis: 1 }));
      outputsOfStep.push(h);
    }
    const sequence = (values: readonly string[], index: number) =>
      e.reshape(join(e, values), outputs[index]!.shape);
    return [sequence(outputsOfStep, 0), h, sequence(keptOfStep, 2)];
  },

  gru_grad: (e, [dy, dhLast, x, h0, wIh, wHh, y, kept], { inputs }) => {
    const [count, batch, hidden] = inputs[0]!.shape as [number, Shape[number], number];
    const size = inputs[2]!.shape[2] as number;
    const rows = (value: string, width: number) => e.reshape(value, [-1, width]);
    const [r, z, n, recurrentN] = splitColumns(e, rows(kept!, 4 * hidden), [hidden, hidden, hidden, hidden]) as [string, string, string, string]; // prettier-ignore
    const previous =
      count === 1
        ? h0!
        : e.op(
            'Concat',
            [h0!, rows(e.op('Slice', [y!, e.ints([0]), e.ints([count - 1]), e.ints([0])]), hidden)],
            { axis: 0 },
          );
    // What a unit of dh does to each gate before its activation, for all steps.
    const toN = e.op('Mul', [oneMinus(e, z), tanhSlope(e, n)]);
    const toZ = e.op('Mul', [e.op('Sub', [previous, n]), sigmoidSlope(e, z)]);
    const toR = e.op('Mul', [e.op('Mul', [toN, recurrentN]), sigmoidSlope(e, r)]);
    const toRecurrentN = e.op('Mul', [toN, r]);
    const fromHidden = e.op('Concat', [toR, toZ, toRecurrentN], { axis: 1 });

    const dyOf = steps(e, dy!, [count, batch, hidden]);
    const fromHiddenOf = steps(e, fromHidden, [count, batch, 3 * hidden]).map((v) =>
      e.reshape(v, [batch, 3, hidden]),
    );
    const zOf = steps(e, z, [count, batch, hidden]);
    const dRecurrentOf: string[] = new Array<string>(count);
    const dhOf: string[] = new Array<string>(count);
    let dh = dhLast!;
    for (let t = count - 1; t >= 0; t--) {
      dh = e.op('Add', [dyOf[t]!, dh]);
      dhOf[t] = dh;
      const gates = e.op('Mul', [fromHiddenOf[t]!, e.reshape(dh, [batch, 1, hidden])]);
      dRecurrentOf[t] = e.reshape(gates, [batch, 3 * hidden]);
      dh = e.op('Gemm', [dRecurrentOf[t]!, wHh!, e.op('Mul', [dh, zOf[t]!])]);
    }
    const dRecurrent = join(e, dRecurrentOf);
    const [dRz] = splitColumns(e, dRecurrent, [2 * hidden, hidden]);
    const dInput = e.op('Concat', [dRz!, e.op('Mul', [toN, join(e, dhOf)])], { axis: 1 });
    const dx = e.reshape(e.op('MatMul', [dInput, wIh!]), inputs[2]!.shape);
    const dwIh = e.op('Gemm', [dInput, rows(x!, size)], { transA: 1 });
    const dwHh = e.op('Gemm', [dRecurrent, previous], { transA: 1 });
    const sumRows = (value: string) => e.op('ReduceSum', [value, e.ints([0])], { keepdims: 0 });
    return [dx, dh, dwIh, dwHh, sumRows(dInput), sumRows(dRecurrent)];
  },
};
