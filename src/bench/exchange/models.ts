/**
 * The parameters of the models that `bench exchange` exchanges: every tensor that is trained, by name and length, in the
 * order of the forward pass. Sizes only: nothing here computes. The image models are those of torchvision with 1,000
 * classes, without auxiliary classifiers; running statistics are not exchanged and not listed. Invariant: the totals are
 * the published ones (a test holds them).
 */
import { inceptionV3 } from './inception-v3.ts';
import { block, layer, normalized } from './layer-sizes.ts';
import type { ModelTensor } from './layer-sizes.ts';

export type { ModelTensor };

export type ModelName =
  'alexnet' | 'vgg11' | 'vgg19' | 'googlenet' | 'inception-v3' | 'resnet18' | 'resnet50' | 'resnet269' | 'lm';

type Tensors = readonly ModelTensor[];
const CLASSES = 1000;

/** Each gives the tensors of a model. */
export const exchangeModels: Readonly<Record<ModelName, () => readonly ModelTensor[]>> = {
  alexnet,
  vgg11: () => vgg([1, 1, 2, 2, 2]),
  vgg19: () => vgg([2, 2, 4, 4, 4]),
  googlenet,
  'inception-v3': inceptionV3,
  resnet18: () => resnet('basic', [2, 2, 2, 2]),
  resnet50: () => resnet('bottleneck', [3, 4, 6, 3]),
  resnet269: () => resnet('bottleneck', [3, 30, 48, 8]),
  lm: languageModel,
};

/** Elements of all tensors together. */
export function elementsOf(model: readonly ModelTensor[]): number {
  return model.reduce((sum, { length }) => sum + length, 0);
}

/** Krizhevsky 2014 ("One weird trick"): 61,100,840 parameters in 16 tensors. */
function alexnet(): Tensors {
  return [
    ...layer('features.0', 3, 64, 11),
    ...layer('features.3', 64, 192, 5),
    ...layer('features.6', 192, 384, 3),
    ...layer('features.8', 384, 256, 3),
    ...layer('features.10', 256, 256, 3),
    ...layer('classifier.1', 256 * 6 * 6, 4096),
    ...layer('classifier.4', 4096, 4096),
    ...layer('classifier.6', 4096, CLASSES),
  ];
}

/** Simonyan and Zisserman 2014; `depths` are the convolutions of each stage. */
function vgg(depths: readonly [number, number, number, number, number]): Tensors {
  const widths = [64, 128, 256, 512, 512];
  const tensors: ModelTensor[] = [];
  let inputs = 3;
  let index = 0;
  depths.forEach((depth, stage) => {
    for (let i = 0; i < depth; i++) {
      tensors.push(...layer(`features.${index}`, inputs, widths[stage]!, 3));
      inputs = widths[stage]!;
      index += 2; // The activation has a number too,
    }
    index += 1; // and so does the pooling that ends a stage.
  });
  return [
    ...tensors,
    ...layer('classifier.0', 512 * 7 * 7, 4096),
    ...layer('classifier.3', 4096, 4096),
    ...layer('classifier.6', 4096, CLASSES),
  ];
}

/**
 * Szegedy et al. 2014 as torchvision has it: batch normalization, 3x3 where the paper has 5x5; 6,624,904 parameters (with the
 * two auxiliary classifiers 13,004,888).
 */
function googlenet(): Tensors {
  return [
    ...block('conv1', 3, 64, 7),
    ...block('conv2', 64, 64),
    ...block('conv3', 64, 192, 3),
    ...inception('inception3a', 192, 64, [96, 128], [16, 32], 32),
    ...inception('inception3b', 256, 128, [128, 192], [32, 96], 64),
    ...inception('inception4a', 480, 192, [96, 208], [16, 48], 64),
    ...inception('inception4b', 512, 160, [112, 224], [24, 64], 64),
    ...inception('inception4c', 512, 128, [128, 256], [24, 64], 64),
    ...inception('inception4d', 512, 112, [144, 288], [32, 64], 64),
    ...inception('inception4e', 528, 256, [160, 320], [32, 128], 128),
    ...inception('inception5a', 832, 256, [160, 320], [32, 128], 128),
    ...inception('inception5b', 832, 384, [192, 384], [48, 128], 128),
    ...layer('fc', 1024, CLASSES),
  ];
}

/** Four branches side by side; the middle two narrow the input before they convolve. */
function inception(
  key: string,
  inputs: number,
  direct: number,
  middle: readonly [number, number],
  wide: readonly [number, number],
  pooled: number,
): Tensors {
  return [
    ...block(`${key}.branch1`, inputs, direct),
    ...block(`${key}.branch2.0`, inputs, middle[0]),
    ...block(`${key}.branch2.1`, middle[0], middle[1], 3),
    ...block(`${key}.branch3.0`, inputs, wide[0]),
    ...block(`${key}.branch3.1`, wide[0], wide[1], 3),
    ...block(`${key}.branch4.1`, inputs, pooled),
  ];
}

/** He et al. 2015 with two 3x3 convolutions a block (18 layers) or a bottleneck of 1x1, 3x3, 1x1 (50 and 269). */
function resnet(kind: 'basic' | 'bottleneck', depths: readonly [number, number, number, number]): Tensors {
  const expansion = kind === 'basic' ? 1 : 4;
  const tensors: ModelTensor[] = [...normalized('conv1', 'bn1', 3, 64, 7)];
  let inputs = 64;
  depths.forEach((depth, stage) => {
    const width = 64 * 2 ** stage;
    for (let i = 0; i < depth; i++) {
      const key = `layer${stage + 1}.${i}`;
      const convolve = (n: number, from: number, to: number, kernel: number): Tensors =>
        normalized(`${key}.conv${n}`, `${key}.bn${n}`, from, to, kernel);
      if (kind === 'basic') tensors.push(...convolve(1, inputs, width, 3), ...convolve(2, width, width, 3));
      else
        tensors.push(
          ...convolve(1, inputs, width, 1),
          ...convolve(2, width, width, 3),
          ...convolve(3, width, width * expansion, 1),
        );
      // The shortcut of a stage's first block, where its shape changes.
      if (i === 0 && inputs !== width * expansion)
        tensors.push(
          ...normalized(`${key}.downsample.0`, `${key}.downsample.1`, inputs, width * expansion, 1),
        );
      inputs = width * expansion;
    }
  });
  return [...tensors, ...layer('fc', inputs, CLASSES)];
}

/**
 * A language model in the proportions of the one in Parallax (Kim et al. 2019), where tables are nearly everything, at a size
 * that fits into one machine: 800,000 words of 128, one LSTM of 2,048 units projected to 128, and outputs that share the
 * table. 104,775,680 parameters, 102,400,000 of them in the table.
 */
function languageModel(): Tensors {
  const [words, width, units] = [800_000, 128, 2048];
  return [
    { key: 'embedding.weight', length: words * width, rowLength: width },
    { key: 'lstm.weight_ih_l0', length: 4 * units * width },
    { key: 'lstm.weight_hh_l0', length: 4 * units * width },
    { key: 'lstm.bias_ih_l0', length: 4 * units },
    { key: 'lstm.bias_hh_l0', length: 4 * units },
    { key: 'lstm.weight_hr_l0', length: width * units },
  ];
}
