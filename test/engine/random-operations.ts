/**
 * Random operations for property tests: few variables, so that many conflict. Not their execution. Invariant: `reads` and
 * `mutates` may share variables, as those of callers may.
 */
import fc from 'fast-check';

export interface RandomOperation {
  readonly reads: string[];
  readonly mutates: string[];
  readonly priority: number;
  readonly lane: string | undefined;
  readonly isFailing: boolean;
  /** Turns that its work takes, one wait each. */
  readonly turns: number;
}

const variables = ['a', 'b', 'c', 'd', 'e'];

const operations: fc.Arbitrary<RandomOperation> = fc.record({
  reads: fc.subarray(variables, { maxLength: 3 }),
  mutates: fc.subarray(variables, { maxLength: 2 }),
  priority: fc.integer({ min: -2, max: 2 }),
  lane: fc.option(fc.constantFrom('lane 1', 'lane 2'), { nil: undefined }),
  isFailing: fc.nat(9).map((n) => n === 0),
  turns: fc.nat(3),
});

export const operationLists = fc.array(operations, { minLength: 1, maxLength: 30 });

export const concurrencies = fc.oneof(fc.integer({ min: 1, max: 4 }), fc.constant(Infinity));

export function conflict(a: RandomOperation, b: RandomOperation): boolean {
  const uses = ({ reads, mutates }: RandomOperation) => [...reads, ...mutates];
  return (
    a.mutates.some((variable) => uses(b).includes(variable)) ||
    b.mutates.some((variable) => uses(a).includes(variable))
  );
}
