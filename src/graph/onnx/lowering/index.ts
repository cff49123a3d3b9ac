/** The lowering table: a full mapped type over the catalogue. */
import type { ComputedName } from '../../catalogue.ts';
import { elementwiseLowering } from './elementwise.ts';
import { neuralLowering } from './neural.ts';
import { recurrentLowering } from './recurrent.ts';
import type { LoweringTable } from './rule.ts';
import { tensorLowering } from './tensor.ts';
import { windowLowering } from './windows.ts';

export const loweringTable: LoweringTable<ComputedName> = {
  ...elementwiseLowering,
  ...tensorLowering,
  ...neuralLowering,
  ...windowLowering,
  ...recurrentLowering,
};

export type { LoweringRule } from './rule.ts';
