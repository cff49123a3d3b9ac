/**
 * The program of a training step as a table for people: what runs where, how often, behind what,
 * and for how long.
 */
import { dependenciesOf, lastOfLanes, type Operation, type StepProgram } from '../plan/index.ts';
import { table } from './format.ts';

/**
 * Operations have numbers from 1; those of the step before are in brackets. Of several on a lane the
 * last one is shown.
 */
export function programTable({ operations }: StepProgram): string {
  const waits = dependenciesOf(operations).map((all) => lastOfLanes(operations, all));
  const head = ['operation', 'lane', 'waits for', 'every', 'predicted ms'];
  const rows = operations.map((operation, at) => [
    `${String(at + 1).padStart(String(operations.length).length)} ${operation.name}`,
    operation.lane,
    waits[at]!.map((wait) => (wait.stepsBefore === 1 ? `(${wait.at + 1})` : wait.at + 1)).join(' '),
    everyText(operation),
    operation.predictedMs?.toFixed(2) ?? '',
  ]);
  return table([head, ...rows]);
}

function everyText({ every }: Operation): string {
  if (every === undefined) return 'step';
  return typeof every === 'number' ? `${every} steps` : every;
}
