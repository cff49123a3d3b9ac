/**
 * What walking a step program costs beside what its operations do: those of lock step with eight
 * messages, whose handlers do nothing. Run it by `npx tsx test/runtime/step-walk-cost.ts`. Not a test
 * itself: it prints, and judges nothing.
 */
import { stepProgram, type Operation } from '../../src/plan/index.ts';
import { StepWalk } from '../../src/runtime/index.ts';

const [STEPS, ROUNDS] = [100_000, 15];
const names = Array.from({ length: 8 }, (_, i) => `layer${i}.w`);
const { operations } = stepProgram({
  ...{ parameters: names, groups: names.map((name) => [name]), tables: new Set<string>() },
  routes: new Map(names.map((name) => [name, 'collective'])),
  ...{ hasStates: true, hasAverages: true },
  transforms: [
    { kind: 'norm', name: 'norm' },
    { kind: 'update', name: 'clip' },
  ],
});
const body = operations.filter(({ every }) => every === undefined);
const handler = ({ lane }: Operation) =>
  lane === 'compute'
    ? () => undefined
    : { start: () => undefined, hasEnded: () => true, wait: () => undefined };
const walk = StepWalk.bind({ operations: body }, { parts: [handler], finishedSteps: () => 1 });
const micros = Array.from({ length: ROUNDS }, () => {
  const before = process.cpuUsage().user;
  for (let step = 0; step < STEPS; step++) void walk.step();
  return (process.cpuUsage().user - before) / STEPS;
}).sort((a, b) => a - b);
const [least, median] = [micros[0]!, micros[Math.floor(ROUNDS / 2)]!];
console.log(
  `${body.length} operations: ${least.toFixed(1)} us of processor time a walk at best, ${median.toFixed(1)} us median`,
);
