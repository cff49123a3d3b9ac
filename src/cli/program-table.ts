/**
 * The program of a training step as a table for people: what runs where, how often, behind what,
 * and for how long.
 */
import { dependenciesOf, type Operation, type StepProgram } from '../plan/index.ts';
import { table } from './format.ts';

/** Operations have numbers from 1; those of the step before are in brackets. */
export function programTable({ operations }: StepProgram): string {
  const { sameStep, stepBefore } = dependenciesOf(operations);
  const head = ['operation', 'lane', 'waits for', 'every', 'predicted ms'];
  const rows = operations.map((operation, at) => [
    `${String(at + 1).padStart(String(operations.length).length)} ${operation.name}`,
    operation.lane,
    [...sameStep[at]!.map((one) => one + 1), ...stepBefore[at]!.map((one) => `(${one + 1})`)].join(' '),
    everyText(operation),
    operation.predictedMs?.toFixed(2) ?? '',
  ]);
  return table([head, ...rows]);
}

function everyText({ every }: Operation): string {
  if (every === undefined) return 'step';
  return typeof every === 'number' ? `${every} steps` : every;
}
