/** `tributary train --workers`: the run of one process by several, also when workers are killed and users stop it. */
import { existsSync, readdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { describe, expect, test } from 'vitest';
import { CheckpointStore } from '../../src/runtime/index.ts';
import { temporaryFolders } from '../data/temporary-folder.ts';
import { run } from './fake-io.ts';
import { parse, start, type Program } from './program.ts';
import { rows, writeTinyRun } from './tiny-run.ts';
import { segmentFiles } from '../support/segment-files.ts';

const folder = temporaryFolders();
/** The last batch of an epoch has 4 samples; dropout goes by sample, not by worker. */
const slow = {
  train: rows(604, 1),
  config: {
    ...{ epochs: 10, checkpointEverySteps: 50, movingAverage: 0.99 },
    model: { name: 'text-cnn', size: 8, widths: [2, 3], filters: 8, dropout: 0.2 },
  },
};
const STEPS = 760;

/** The processes that the program has started as workers. */
function workersOf({ child }: Program): number[] {
  const children = readFileSync(`/proc/${child.pid}/task/${child.pid}/children`, 'utf8').trim().split(' ');
  return children
    .filter((pid) => readFileSync(`/proc/${pid}/environ`, 'utf8').split('\0').includes('TRIBUTARY_WORKER=1'))
    .map(Number);
}

function lastTensors(cwd: string, output: string): number[] {
  const { checkpoint } = new CheckpointStore(join(cwd, output, 'checkpoints')).latest();
  expect(checkpoint!.step).toBe(STEPS);
  const { tensors, optimizer } = checkpoint!;
  return [tensors, optimizer].flatMap((table) =>
    Object.values(table).flatMap(({ data }) => [...(data as Float32Array)]),
  );
}

describe('train --workers 2', () => {
  test('names a worker that was killed, stops by ctrl-C with a checkpoint, and is resumed as if nothing had been', async () => {
    const cwd = folder();
    writeTinyRun(cwd, slow);
    const killed = start(['train', 'tiny.json', '--workers', '2', '--output', 'cut', '--json'], cwd);
    await killed.waitFor('checkpoint');
    const [worker] = workersOf(killed);
    process.kill(worker!, 'SIGKILL');
    const after = await killed.ended;
    expect(after.code, after.stderr).toBe(1);
    const { error } = parse(after.lines.at(-1)!) as { error?: { code: string; message: string } };
    expect(error!.code).toBe('PEER_LOST');
    expect(error!.message).toContain(`worker 1 (process ${worker}) was ended by SIGKILL`);
    expect(error!.message).toContain('npx tributary train cut --resume');
    const ids = [killed.child.pid, worker];
    const left = segmentFiles().filter((name) => ids.some((pid) => name.includes(`-${pid}-`)));
    expect(left).toEqual([]);

    // The folder remembers how many workers there are.
    const stopped = start(['train', 'cut', '--resume', '--json'], cwd);
    const resumed = await stopped.waitFor('resumed');
    expect(Number(resumed['step']) % 50).toBe(0);
    await stopped.waitFor('checkpoint');
    stopped.child.kill('SIGINT');
    const interrupted = await stopped.ended;
    expect(interrupted.code, interrupted.stderr).toBe(130);
    const { type, step } = parse(interrupted.lines.at(-1)!);
    expect(type).toBe('interrupted');
    expect(step).toBeLessThan(STEPS);
    expect(readdirSync(join(cwd, 'cut', 'checkpoints')).map((name) => Number(name.slice(5)))).toContain(step);

    const done = await start(['train', 'cut', '--resume', '--trace', 'new/trace.json'], cwd).ended;
    expect(done.code, done.stderr).toBe(0);
    expect(done.stderr).toBe('');
    expect(done.lines.join('\n')).toMatch(/Resumed from .* at step \d+\.\n.*parameters, \d+ steps\n/);
    expect(done.lines.join('\n')).toMatch(
      /Done: accuracy .* samples\/s while training\n2 workers trained in lock step, with the result of one up to rounding\./,
    );
    const { traceEvents } = JSON.parse(readFileSync(join(cwd, 'new', 'trace.json'), 'utf8')) as {
      traceEvents: { pid: number }[];
    };
    expect(new Set(traceEvents.map(({ pid }) => pid))).toEqual(new Set([0, 1]));

    expect((await run(['train', 'tiny.json', '--output', 'whole'], { cwd })).code).toBe(0);
    const [mine, one] = [lastTensors(cwd, 'cut'), lastTensors(cwd, 'whole')];
    expect(mine).toHaveLength(one.length);
    expect(Math.max(...one.map((value, i) => Math.abs(mine[i]! - value)))).toBeLessThan(1e-4);
    const metrics = (output: string) =>
      JSON.parse(readFileSync(join(cwd, output, 'metrics.json'), 'utf8')) as {
        epochs: { step: number }[];
        final: { workers?: number };
      };
    expect(metrics('cut').epochs.map((epoch) => epoch.step)).toEqual(
      metrics('whole').epochs.map((epoch) => epoch.step),
    );
    expect(metrics('cut').final.workers).toBe(2);
  }, 240_000);

  test('refuses a nonce that cannot be read before anything is started or made', async () => {
    const cwd = folder();
    writeTinyRun(cwd, slow);
    const servers = ['--workers', '2', '--servers', '127.0.0.1:1'];
    const access = ['--service', 'a', '--nonce-file', 'none.nonce'];
    const { code, stdout, stderr } = await run(['train', 'tiny.json', ...servers, ...access], { cwd });
    expect(code).toBe(2);
    expect(stderr).toContain(`nonce of service 'a' cannot be read from ${join(cwd, 'none.nonce')}`);
    expect(stdout).toBe('');
    expect(existsSync(join(cwd, 'runs'))).toBe(false);
  });

  test('leaves nothing when there is no checkpoint, and says how to start again; a trace that fails at the end hides no result', async () => {
    const cwd = folder();
    writeTinyRun(cwd, { ...slow, config: { ...slow.config, checkpointEverySteps: undefined } });
    const small = ['--batch-size', '2', '--workers', '2'];
    const killed = start(['train', 'tiny.json', '--output', 'again', '--json', ...small], cwd);
    await killed.waitFor('started');
    process.kill(workersOf(killed)[0]!, 'SIGKILL');
    const { lines } = await killed.ended;
    const { error } = parse(lines.at(-1)!) as { error?: { message: string } };
    expect(error!.message).toMatch(/\. No checkpoint was written yet; start again by the same command\.$/);
    expect(existsSync(join(cwd, 'again'))).toBe(false);

    const first = ['train', 'tiny.json', '--output', 'again', '--max-steps', '1'];
    expect((await run(first, { cwd })).code).toBe(0);

    // What is to be replaced is also what says how to train, to every worker.
    const large = ['--batch-size', '128', '--epochs', '1', '--workers', '2'];
    // It can be opened, but nothing can be written to it.
    const full = ['--trace', '/dev/full'];
    const ended = await start(['train', 'again', '--overwrite', '--json', ...full, ...large], cwd).ended;
    expect(ended.code, ended.stderr).toBe(1);
    const [finished, failed] = ended.lines.slice(-2).map(parse);
    expect(finished).toMatchObject({ type: 'finished', steps: 5, workers: 2 });
    expect(failed).toMatchObject({ error: { code: 'FILE_NOT_WRITTEN' } });
    expect(JSON.stringify(failed)).toContain('The run itself is complete');
    expect(readdirSync(join(cwd, 'again')).sort()).toEqual(
      ['checkpoints', 'config.json', 'labels.json', 'metrics.json', 'model.onnx', 'vocabulary.json'].sort(),
    );
    const config = JSON.parse(readFileSync(join(cwd, 'again', 'config.json'), 'utf8')) as object;
    expect(config).toMatchObject({ batchSize: 128, epochs: 1, on: { workers: 2 } });
  }, 120_000);

  test.each([
    ['tiny.json/trace.json', /tiny\.json is a file, not a folder/],
    ['.', /it is a folder/],
  ])('refuses to begin with a trace in %j', async (file, words) => {
    const cwd = folder();
    writeTinyRun(cwd);
    const { code, stderr } = await run(['train', 'tiny.json', '--workers', '2', '--trace', file], { cwd });
    expect(code).toBe(1);
    expect(stderr).toContain('error [FILE_NOT_WRITTEN]');
    expect(stderr).toMatch(words);
    expect(stderr).toContain('Give another file by --trace');
    expect(readdirSync(cwd)).not.toContain('runs');
  });

  const elsewhere = [
    { name: 'a', address: '192.0.2.1' },
    { name: 'b', command: ['false'] },
  ];
  test.each([
    [{ on: { workers: 2 } }, ['--batch-size', '1'], /a batch of 1 samples cannot be shared by 2 workers/],
    [{ on: { machines: [{ name: 'a' }, { name: 'b' }] } }, [], /a needs an address/],
    [
      { on: { machines: elsewhere } },
      [],
      /machines\[0\]\.address is 192\.0\.2\.1, which is no address of this machine/,
    ],
  ])('refuses %j with %j as a wrong configuration', async (config, options, words) => {
    const cwd = folder();
    writeTinyRun(cwd, { config });
    const { code, stderr } = await run(['train', 'tiny.json', '--trust', ...options], { cwd });
    expect(stderr).toMatch(words);
    expect(code).toBe(2);
  });

  test.each([{ workers: 2 }, { machines: [{ name: 'a', workers: 2 }] }])(
    'refuses a mode of learners with a configuration of %j',
    async (on) => {
      const cwd = folder();
      writeTinyRun(cwd, { config: { on } });
      const { code, stderr } = await run(['train', 'tiny.json', '--mode', 'direct locked'], { cwd });
      expect(code).toBe(2);
      expect(stderr).toContain(
        `takes --mode 'direct locked' for learners, and the configuration asks for workers`,
      );
      expect(readdirSync(cwd)).not.toContain('runs');
    },
  );

  test.each([
    [['--workers', '2', '--learners', '2'], /--workers or --learners, not both/],
    [['--workers', '2', '--mode', 'direct lock-free'], /--workers or --mode, not both/],
    [['--trace', 'trace.json'], /give --workers 2 or more with --trace/],
    [['--workers', '0'], /workers is 0; expected at least 1/],
  ])('refuses %j', async (options, words) => {
    const cwd = folder();
    writeTinyRun(cwd);
    const { code, stderr } = await run(['train', 'tiny.json', ...options], { cwd });
    expect(code).toBe(2);
    expect(stderr).toMatch(words);
    expect(readdirSync(cwd)).not.toContain('runs');
  });

  test.each([
    [{ on: { workers: 2, learners: 2 } }, /Give either workers or learners, not both/],
    [{ on: { workers: 2 }, workers: 2 }, /the fields on and workers are both there/],
    [
      { on: undefined, workers: 2, learnerMode: 'direct locked' },
      /Give either workers or learners, not both/,
    ],
  ])('refuses a configuration with %j', async (config, words) => {
    const cwd = folder();
    writeTinyRun(cwd, { config });
    const { code, stderr } = await run(['train', 'tiny.json'], { cwd });
    expect(code).toBe(2);
    expect(stderr).toMatch(words);
  });

  test.each([
    [['--workers', '2', '--json'], {}, '{"type":"starting","workers":2}'],
    [[], { on: { workers: 2 } }, 'Starting 2 workers ...'],
  ])('tells that they are started before it waits for them: %j', async (options, config, line) => {
    const cwd = folder();
    writeTinyRun(cwd, { config });
    const args = ['train', 'tiny.json', '--trust', '--max-steps', '1', ...options];
    const { code, lines, stderr } = await start(args, cwd).ended;
    expect(code, stderr).toBe(0);
    expect(lines[1]).toBe(line);
    expect(lines.filter((one) => one === line)).toHaveLength(1);
  });

  test('with one of them on the command line goes by that, whatever the file says', async () => {
    const cwd = folder();
    writeTinyRun(cwd, { config: { on: { workers: 2 }, epochs: 1 } });
    const { code, stdout } = await run(['train', 'tiny.json', '--learners', '1'], { cwd });
    expect(code).toBe(0);
    expect(stdout).not.toContain('workers');
  });
});
