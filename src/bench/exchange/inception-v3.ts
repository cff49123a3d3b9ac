/**
 * The parameters of Inception v3 (Szegedy et al. 2015) as torchvision has it, without the auxiliary classifier: 23,834,568
 * (with it 27,161,264). Sizes only. Its blocks differ so much from each other that they are tables here: for each
 * convolution its name, inputs, outputs and kernel.
 */
import { block, layer } from './layer-sizes.ts';
import type { KernelSize, ModelTensor } from './layer-sizes.ts';

type Convolution = readonly [name: string, inputs: number, outputs: number, kernel?: KernelSize];

const ROW: KernelSize = [1, 7];
const COLUMN: KernelSize = [7, 1];
const SHORT_ROW: KernelSize = [1, 3];
const SHORT_COLUMN: KernelSize = [3, 1];

export function inceptionV3(): readonly ModelTensor[] {
  return [
    ...blocks('', [
      ['Conv2d_1a_3x3', 3, 32, 3],
      ['Conv2d_2a_3x3', 32, 32, 3],
      ['Conv2d_2b_3x3', 32, 64, 3],
      ['Conv2d_3b_1x1', 64, 80],
      ['Conv2d_4a_3x3', 80, 192, 3],
    ]),
    ...blocks('Mixed_5b.', wide(192, 32)),
    ...blocks('Mixed_5c.', wide(256, 64)),
    ...blocks('Mixed_5d.', wide(288, 64)),
    ...blocks('Mixed_6a.', firstReduction(288)),
    ...blocks('Mixed_6b.', factored(768, 128)),
    ...blocks('Mixed_6c.', factored(768, 160)),
    ...blocks('Mixed_6d.', factored(768, 160)),
    ...blocks('Mixed_6e.', factored(768, 192)),
    ...blocks('Mixed_7a.', secondReduction(768)),
    ...blocks('Mixed_7b.', spread(1280)),
    ...blocks('Mixed_7c.', spread(2048)),
    ...layer('fc', 2048, 1000),
  ];
}

function blocks(prefix: string, convolutions: readonly Convolution[]): ModelTensor[] {
  return convolutions.flatMap(([name, inputs, outputs, kernel]) =>
    block(`${prefix}${name}`, inputs, outputs, kernel),
  );
}

/** Figure 5 of the paper. */
function wide(inputs: number, pooled: number): Convolution[] {
  return [
    ['branch1x1', inputs, 64],
    ['branch5x5_1', inputs, 48],
    ['branch5x5_2', 48, 64, 5],
    ['branch3x3dbl_1', inputs, 64],
    ['branch3x3dbl_2', 64, 96, 3],
    ['branch3x3dbl_3', 96, 96, 3],
    ['branch_pool', inputs, pooled],
  ];
}

/** Figure 10: halves the grid. */
function firstReduction(inputs: number): Convolution[] {
  return [
    ['branch3x3', inputs, 384, 3],
    ['branch3x3dbl_1', inputs, 64],
    ['branch3x3dbl_2', 64, 96, 3],
    ['branch3x3dbl_3', 96, 96, 3],
  ];
}

/** Figure 6: 7x7 as a row and a column. */
function factored(inputs: number, width: number): Convolution[] {
  return [
    ['branch1x1', inputs, 192],
    ['branch7x7_1', inputs, width],
    ['branch7x7_2', width, width, ROW],
    ['branch7x7_3', width, 192, COLUMN],
    ['branch7x7dbl_1', inputs, width],
    ['branch7x7dbl_2', width, width, COLUMN],
    ['branch7x7dbl_3', width, width, ROW],
    ['branch7x7dbl_4', width, width, COLUMN],
    ['branch7x7dbl_5', width, 192, ROW],
    ['branch_pool', inputs, 192],
  ];
}

function secondReduction(inputs: number): Convolution[] {
  return [
    ['branch3x3_1', inputs, 192],
    ['branch3x3_2', 192, 320, 3],
    ['branch7x7x3_1', inputs, 192],
    ['branch7x7x3_2', 192, 192, ROW],
    ['branch7x7x3_3', 192, 192, COLUMN],
    ['branch7x7x3_4', 192, 192, 3],
  ];
}

/** Figure 7: 3x3 as a row and a column beside each other. */
function spread(inputs: number): Convolution[] {
  return [
    ['branch1x1', inputs, 320],
    ['branch3x3_1', inputs, 384],
    ['branch3x3_2a', 384, 384, SHORT_ROW],
    ['branch3x3_2b', 384, 384, SHORT_COLUMN],
    ['branch3x3dbl_1', inputs, 448],
    ['branch3x3dbl_2', 448, 384, 3],
    ['branch3x3dbl_3a', 384, 384, SHORT_ROW],
    ['branch3x3dbl_3b', 384, 384, SHORT_COLUMN],
    ['branch_pool', inputs, 192],
  ];
}
