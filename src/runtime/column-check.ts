/**
 * Whether a dataset fits a model: for every input a column of the same name, with samples of the input's shape and type. The one place where
 * data and model are compared, whoever trains or evaluates; what the numbers mean is not checked here.
 * Invariant: what passes fills every input exactly, for batches of any size.
 */
import { UsageError } from '../base/index.ts';
import { sampleSize, type Column, type Dataset } from '../data/index.ts';
import { isBatch, printShape, type Model, type Tensor } from '../graph/index.ts';

/** Call before the first step. `what` names the data in the error. */
export function checkColumns({ graph }: Model, dataset: Dataset, what = 'data'): void {
  const columns = new Map(dataset.columns.map((column) => [column.name, column]));
  const faults = [...graph.inputs].flatMap(([name, input]) => faultsOf(name, input, columns.get(name)));
  if (faults.length === 0) return;
  const missing = faults.filter(({ isMissing }) => isMissing).map(({ name }) => name);
  const has = missing.length === 0 ? '' : `; it has ${[...columns.keys()].join(', ')}`;
  const nextSteps = [...new Set(faults.map(({ nextStep }) => nextStep))];
  throw new UsageError(
    missing.length === faults.length ? 'INVALID_DATA' : 'SHAPE_MISMATCH',
    `The ${what} does not fit the model: ${faults.map(({ fault }) => fault).join('; ')}${has}. ${nextSteps.join(' ')}`,
    { columns: faults.map(({ name, expected, actual }) => ({ name, expected, actual })) },
  );
}

/** The training and test data of one run. */
export function checkRunData(
  model: Model,
  { train, test }: { readonly train: Dataset; readonly test?: Dataset | undefined },
): void {
  checkColumns(model, train, 'training data');
  if (test) checkColumns(model, test, 'test data');
}

interface Fault {
  /** Of the input and its column. */
  readonly name: string;
  readonly fault: string;
  readonly nextStep: string;
  readonly expected: string;
  readonly actual: string;
  readonly isMissing?: boolean;
}

function faultsOf(name: string, input: Tensor, column: Column | undefined): Fault[] {
  const shape = sampleShapeOf(input);
  if (!shape) {
    return [
      {
        ...{ name, expected: '[N, ...]', actual: printShape(input.shape) },
        fault: `the model's input "${name}" is ${printShape(input.shape)}, so that samples cannot fill it`,
        nextStep: 'Make the batch N the first dimension, and the only one that is not a number.',
      },
    ];
  }
  const wanted = `${input.dtype}, ${printSample(shape)}`;
  if (!column) {
    return [
      {
        ...{ name, expected: wanted, actual: 'none', isMissing: true },
        fault: `there is no column "${name}" for the model's input "${name}" (${wanted})`,
        nextStep: 'Give every input a column of its name.',
      },
    ];
  }
  const faults: Fault[] = [];
  const { sampleShape } = column;
  const dtype = column.dtype === 'int32' ? 'int32' : 'float32';
  const both = { name, expected: wanted, actual: `${dtype}, ${printSample(sampleShape)}` };
  if (sampleShape.length !== shape.length || sampleShape.some((extent, i) => extent !== shape[i])) {
    faults.push({
      ...both,
      fault: `column "${name}" has samples of ${printSample(sampleShape)}, the model's input "${name}" takes ${printSample(shape)}`,
      nextStep:
        sampleSize(sampleShape) === sampleSize(shape)
          ? `If the numbers are in the order of the model, give the column sampleShape [${shape.join(', ')}]; otherwise build the model for the shape of the data.`
          : 'Build the model for the shape of the data, or give it data of its own shape.',
    });
  }
  if (dtype !== input.dtype) {
    faults.push({
      ...both,
      fault: `column "${name}" gives ${dtype}, the model's input "${name}" takes ${input.dtype}`,
      nextStep: typeStep(name, input),
    });
  }
  return faults;
}

/** What one sample fills of an input: all but the batch. Undefined if samples cannot fill it one after the other. */
function sampleShapeOf({ shape }: Tensor): number[] | undefined {
  const [batch, ...rest] = shape;
  if (batch === undefined || !isBatch(batch) || rest.some(isBatch)) return undefined;
  return [...(batch.multiple === 1 ? [] : [batch.multiple]), ...(rest as number[])];
}

function printSample(shape: readonly number[]): string {
  return shape.length === 0 ? 'one number' : `shape [${shape.join(', ')}]`;
}

function typeStep(name: string, { dtype }: Tensor): string {
  if (dtype === 'int32') return `Give the data of column "${name}" as an Int32Array.`;
  if (dtype === 'float32') return `Give the data of column "${name}" as a Float32Array or Uint8Array.`;
  return `Make the input "${name}" float32 or int32, which columns are, and cast it in the model.`;
}
