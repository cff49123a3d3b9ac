/**
 * One turn of workers in lock step, as a process of its own: the same batches as learners have, but every step waits for the
 * gradients of all, by the direct allreduce. Compares nothing. Invariant: when the turn is over, well or not, no process is left.
 */
import { execFile } from 'node:child_process';
import { fileURLToPath } from 'node:url';
import { promisify } from 'node:util';
import { PeerError } from '../../base/index.ts';
import type { LearnersRate, LearnersTurnOptions } from './learners-turn.ts';
import type { SynchronousOrder, SynchronousResult } from './synchronous-program.ts';

export interface SynchronousTurnOptions extends Pick<
  LearnersTurnOptions,
  'task' | 'learners' | 'turnMs' | 'warmupMs' | 'samplesPerStep' | 'signal'
> {
  /** About how fast one learner is: decides how many steps make a turn. */
  readonly singleSamplesPerSec: number;
}

/** Beyond the length of the turn: starting, and being slower than one learner. */
const PATIENCE_MS = 120_000;
const FEWEST_STEPS = 5;

export async function takeSynchronousTurn(options: SynchronousTurnOptions): Promise<LearnersRate> {
  const { task, learners: workers, turnMs, warmupMs, samplesPerStep, singleSamplesPerSec, signal } = options;
  const stepsIn = (ms: number) =>
    Math.max(FEWEST_STEPS, Math.round((ms / 1000) * (singleSamplesPerSec / samplesPerStep)));
  const order: SynchronousOrder = { task, workers, warmupSteps: stepsIn(warmupMs), steps: stepsIn(turnMs) };
  const fromSources = import.meta.url.endsWith('.ts');
  const program = fileURLToPath(
    new URL(`./synchronous-program.${fromSources ? 'ts' : 'js'}`, import.meta.url),
  );
  const loader = fromSources ? ['--import', import.meta.resolve('tsx')] : [];
  try {
    const { stdout } = await promisify(execFile)(
      process.execPath,
      [...loader, program, JSON.stringify(order)],
      {
        ...{ signal, timeout: PATIENCE_MS + warmupMs + turnMs, killSignal: 'SIGKILL' },
      },
    );
    return { samplesPerSec: (JSON.parse(stdout) as SynchronousResult).samplesPerSec, meanStaleness: 0 };
  } catch (cause) {
    throw new PeerError(
      'PEER_EXITED',
      `${workers} workers in lock step gave no figure; look at what they say: ${String((cause as { stderr?: unknown }).stderr ?? cause)}`,
      { workers },
      cause,
    );
  }
}
