/**
 * The program of a learner or of the server: works until it is told to stop or its watchdog is gone. Started by `watchdog.ts`,
 * never imported. Invariant: the watchdog hears of every end that is not a kill.
 */
import { setImmediate as yieldToEvents } from 'node:timers/promises';
import { pack } from '../base/index.ts';
import { SharedSpace } from '../memory/index.ts';
import { SERVER } from './board.ts';
import type { Identity } from './board.ts';
import { Learner } from './learner.ts';
import { LearnerMemory } from './learner-memory.ts';
import type { LearnerLayout } from './learner-memory.ts';
import { loadTask } from './task.ts';
import type { TaskSource } from './task.ts';
import type { UpdateMode } from './update-mode.ts';
import { UpdateServer } from './update-server.ts';

export interface LearnerAssignment {
  readonly self: Identity;
  readonly source: TaskSource;
  readonly mode: UpdateMode;
  /** Of the run's segments. */
  readonly name: string;
  readonly layout: LearnerLayout;
}

export type LearnerNews =
  { readonly kind: 'ready' } | { readonly kind: 'failed'; readonly error: ReturnType<typeof pack> };

/** The event loop hears of a watchdog that is gone only now and then: computing comes first. */
const LISTEN_EVERY_MS = 50;
const SLEEP_MS = 5;

const { self, source, mode, name, layout } = JSON.parse(process.argv[2]!) as LearnerAssignment;
// Ctrl-C reaches all processes of a terminal; the watchdog decides what it means.
process.on('SIGINT', () => undefined);
// Without a watchdog there is nobody to train for.
process.once('disconnect', () => process.exit(1));
const tell = (news: LearnerNews) => new Promise<void>((done) => process.send!(news, () => done()));

try {
  const space = SharedSpace.create();
  const memory = LearnerMemory.attach(space, name, layout);
  const task = await loadTask(source);
  const options = { self, task, mode, space, memory, name };
  const worker = self.number === SERVER ? new UpdateServer(options) : new Learner(options);
  await tell({ kind: 'ready' });
  let listenedMs = performance.now();
  while (!memory.isStopped) {
    const { heard } = memory;
    const worked = worker.step();
    if (!worked) memory.sleep(heard, SLEEP_MS);
    if (performance.now() - listenedMs < LISTEN_EVERY_MS) continue;
    await yieldToEvents();
    listenedMs = performance.now();
  }
  worker.close();
  memory.close();
} catch (error) {
  await tell({ kind: 'failed', error: pack(error) });
  process.exitCode = 1;
}
process.disconnect();
