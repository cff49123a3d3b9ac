/**
 * The picture of `bench runner`: for each model the rate of every side as a share of that of independent copies. An SVG text;
 * measures nothing. Invariant: the line is what the machine allows workers who never wait.
 */
import { barChart, type Bar } from '../bar-chart.ts';
import type { RunnerBench, RunnerCase } from './runner.ts';

const OURS = '#2f6f8f';
const OURS_ALONE = '#8cbfd4';
const TORCH = '#b8743a';
const TORCH_ALONE = '#dcb48e';

export function runnerChart({ cases, machine, date }: RunnerBench): string {
  const [first] = cases;
  const copies = `${first?.workers ?? 0} independent copies`;
  return barChart(cases.flatMap(barsOf), {
    title: `Workers by getRunner against ${copies}`,
    subtitle: `batch ${first?.batch ?? 0} and one thread each, ${machine.processor}, ${date.slice(0, 10)}; the line: the copies`,
    reference: 1,
  });
}

function barsOf(one: RunnerCase): Bar[] {
  const name = one.model.split(' ')[0]!;
  const bar = (label: string, rate: number | null, colour: string): Bar[] => {
    if (rate === null) return [];
    const value = rate / one.ceilingSamplesPerSec;
    const note = `${value.toFixed(2)} (${Math.round(rate).toLocaleString('en-US')} samples/s)`;
    return [{ label: `${name}, ${label}`, value, note, colour }];
  };
  return [
    ...bar('one device', one.singleSamplesPerSec, OURS_ALONE),
    ...bar('copies in step', one.inStepSamplesPerSec, OURS_ALONE),
    ...bar('getRunner', one.samplesPerSec, OURS),
    ...bar('PyTorch alone', one.ddpSingleSamplesPerSec, TORCH_ALONE),
    ...bar('PyTorch DDP', one.ddpSamplesPerSec, TORCH),
  ];
}
