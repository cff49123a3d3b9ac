/** The tables over the catalogue are complete, at run time and for the compiler. */
import { describe, expect, it } from 'vitest';
import type { DifferentiableName } from '../../src/graph/index.ts';
import { gradientTable } from '../../src/graph/gradients/index.ts';
import type { GradientTable } from '../../src/graph/gradients/rule.ts';
import { loweringTable } from '../../src/graph/onnx/lowering/index.ts';

describe('the operation catalogue', () => {
  it('does not compile with a gradient rule missing (checked by the type checker)', () => {
    const { add, ...rest } = gradientTable;
    // @ts-expect-error: the rule of `add` is missing
    const incomplete: GradientTable<DifferentiableName> = rest;
    expect(add).toBeTypeOf('function');
    expect(incomplete).not.toHaveProperty('add');
  });

  it('has a lowering for everything that has a gradient', () => {
    for (const name of Object.keys(gradientTable)) expect(loweringTable).toHaveProperty(name);
  });
});
