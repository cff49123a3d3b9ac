/** Images and labels from IDX files as a dataset of `x` and `labels`. Knows the files' meaning, not their format. */
import { UsageError } from '../base/index.ts';
import { Dataset, readIdx } from '../data/index.ts';
import type { IdxData } from './config.ts';

export interface IdxImages {
  readonly dataset: Dataset;
  readonly inputShape: readonly number[];
  readonly classes: number;
}

/** `classes`: how many the training data had. Default: one more than the largest label. */
export function readIdxImages(
  data: IdxData,
  imageFile: string,
  labelFile: string,
  classes?: number,
): IdxImages {
  const images = readIdx(imageFile);
  const labels = readIdx(labelFile);
  const [count, ...rest] = images.shape;
  if (images.dtype !== 'uint8' || rest.length < 2 || rest.length > 3) {
    throw invalid(imageFile, 'uint8 of [n, height, width] or [n, channels, height, width]', print(images));
  }
  if (labels.dtype === 'float32' || labels.shape.length !== 1 || labels.shape[0] !== count) {
    throw invalid(labelFile, `whole numbers of [${count}], one for each image`, print(labels));
  }
  const inputShape = rest.length === 2 ? [1, ...rest] : rest;
  const ids = Int32Array.from(labels.data);
  const largest = ids.reduce((a, b) => Math.max(a, b), 0);
  const wrong = ids.findIndex((id) => id < 0 || id >= (classes ?? Infinity));
  if (wrong !== -1) {
    throw new UsageError(
      'UNKNOWN_LABEL',
      `${labelFile}: label ${ids[wrong]} at index ${wrong} was never seen in training, which has 0 to ${(classes ?? largest + 1) - 1}. Correct the label or add training images with it.`,
      { file: labelFile, index: wrong, label: ids[wrong] },
    );
  }
  const { mean = 0, deviation = 1 } = data;
  const dataset = new Dataset([
    {
      name: 'x',
      data: images.data,
      sampleShape: inputShape,
      scale: { multiply: 1 / (255 * deviation), add: -mean / deviation },
    },
    { name: 'labels', data: ids },
  ]);
  return { dataset, inputShape, classes: classes ?? largest + 1 };
}

function print({ dtype, shape }: { readonly dtype: string; readonly shape: readonly number[] }): string {
  return `${dtype} of [${shape.join(', ')}]`;
}

function invalid(file: string, expected: string, actual: string): UsageError {
  return new UsageError(
    'INVALID_DATA',
    `${file} holds ${actual}; expected ${expected}. Give fitting files.`,
    {
      file,
      expected,
      actual,
    },
  );
}
