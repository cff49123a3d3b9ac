/** Scripts with workers for workers.test.ts; the first argument is the name of one, the second its options. Not a test itself. */
import { existsSync, readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { TributaryError } from '../../src/base/index.ts';
import {
  fit,
  getRunner,
  shard,
  type FitOptions,
  type RunnerConfig,
  type Workers,
} from '../../src/runner/index.ts';
import { listeningPorts, speaksTls } from '../support/listening-ports.ts';
import { circlesModel, circlesRun } from './circles.ts';
import { segmentFiles } from '../support/segment-files.ts';

const isFirst = process.env['TRIBUTARY_WORKER'] !== '1';
const [, , name, text] = process.argv;
const given = JSON.parse(text!) as {
  readonly on?: Workers;
  readonly folder?: string;
  readonly cwd?: string;
};
const { on = { workers: 2 } } = given;
const { train, optimizer, batchSize, seed, schedule } = circlesRun;
const config = { optimizer, batchSize, seed, schedule, log: () => undefined };

/** What the first process says, as a line of JSON. */
function say(words: unknown): void {
  if (isFirst) console.log(JSON.stringify(words));
}

function workers(): number[] {
  const children = readFileSync(`/proc/${process.pid}/task/${process.pid}/children`, 'utf8');
  return children.trim().split(' ').map(Number);
}

async function errorOf(work: () => Promise<unknown>): Promise<{ code: string; message: string }> {
  try {
    await work();
    return { code: 'none', message: '' };
  } catch (error) {
    if (!(error instanceof TributaryError)) throw error;
    return { code: error.code, message: error.message };
  }
}

const scripts: Record<string, () => Promise<void>> = {
  /** One runner trains while others are refused; then its workers are left, and asked for again. */
  async 'side by side'() {
    const { folder: checkpointDirectory } = given;
    const runner = await getRunner(circlesModel(), { ...config, on });
    const reports = runner.run(shard(train), { maxSteps: 6 });
    await reports.next();
    const open = (more: Partial<RunnerConfig>) => getRunner(circlesModel(), { ...config, on, ...more });
    const refused = [
      await errorOf(() => open({ optimizer: { name: 'adam', lr: NaN } })),
      await errorOf(() => open({ resume: true, checkpointDirectory })),
      await errorOf(() => open({ compareEverySteps: isFirst ? 5 : 6 })),
      await errorOf(() => fit(circlesModel(), { ...config, train, on })),
    ];
    let step = 0;
    for await (const report of reports) step = report.step;
    say({ refused, step, replicas: replicaSegments(), workers: workers() });
    await runner.close();
    say(await errorOf(() => open({})));
  },

  /** Trains on servers, and says of each port at which this process listens whether it speaks TLS. */
  async 'with TLS'() {
    const failure = await errorOf(async () => {
      const runner = await getRunner(circlesModel(), { ...config, on: { ...on, strategy: 'servers' } });
      let told = false;
      for await (const { step } of runner.run(shard(train), { maxSteps: 2 })) {
        if (!told && isFirst) say({ step, tls: await Promise.all(listeningPorts().map(speaksTls)) });
        told = true;
      }
      await runner.close();
    });
    say(failure);
    process.exit();
  },

  /** A worker is lost in the first attempt; the second has no end. */
  async 'again after a loss'() {
    const marker = join(given.folder!, 'lost');
    const model = circlesModel();
    const attempt = async () => {
      const runner = await getRunner(model, { ...config, on });
      try {
        for await (const { step } of runner.run(shard(train), { epochs: Infinity })) {
          if (step !== 3) continue;
          say({ workers: workers() });
          if (isFirst || existsSync(marker)) continue;
          writeFileSync(marker, '');
          process.kill(process.pid, 'SIGKILL');
        }
      } catch (error) {
        await runner.abort(error as Error);
        throw error;
      }
    };
    say(await errorOf(attempt));
    await attempt();
  },

  async 'until stopped'() {
    if (process.cwd() !== given.cwd) throw new Error(`it runs in ${process.cwd()}, not in ${given.cwd}`);
    const controller = new AbortController();
    if (isFirst) process.once('SIGINT', () => controller.abort());
    const { signal } = controller;
    const onEvent: FitOptions['onEvent'] = ({ type }) => type === 'epoch' && say({ type });
    const endless = { ...config, train, test: circlesRun.test, epochs: 1e6, signal, onEvent };
    const result = await fit(circlesModel(), { ...endless, on });
    await result.close();
    say({ type: 'end', finished: result.finished, workers: result.workers });
  },
};

/** Of this process. */
function replicaSegments(): number {
  return segmentFiles().filter((file) => file.includes(`replica-${process.pid}-`)).length;
}

await scripts[name!]!();
