/** The gradient table: a full mapped type over the differentiable catalogue, so that a missing rule does not compile. */
import type { DifferentiableName } from '../catalogue.ts';
import { elementwiseGradients } from './elementwise.ts';
import { neuralGradients } from './neural.ts';
import type { GradientTable } from './rule.ts';
import { tensorGradients } from './tensor.ts';

export const gradientTable: GradientTable<DifferentiableName> = {
  ...elementwiseGradients,
  ...tensorGradients,
  ...neuralGradients,
};

export { orZeros, type GradientContext, type GradientRule } from './rule.ts';
