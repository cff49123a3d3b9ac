/**
 * The program of a learner or of the server: works until the run is stopped or its watchdog is gone. Started by `crew.ts`,
 * never imported. Invariants: the watchdog hears of every end that is not a kill; a watchdog that was killed leaves no
 * segment behind as long as one of its processes is left to remove it.
 */
import { setImmediate as yieldToEvents, setTimeout as pause } from 'node:timers/promises';
import { pack } from '../base/index.ts';
import { isAlive, removeStaleSegments, SharedSpace } from '../memory/index.ts';
import type { SegmentOptions } from '../memory/index.ts';
import { SERVER } from './board.ts';
import type { Identity } from './board.ts';
import { Learner } from './learner.ts';
import { LearnerMemory } from './learner-memory.ts';
import type { LearnerLayout } from './learner-memory.ts';
import { loadTask } from './task.ts';
import { checkSameTask, identityOf } from './task-check.ts';
import type { TaskIdentity } from './task-check.ts';
import type { TaskSource } from './task.ts';
import type { UpdateMode } from './update-mode.ts';
import { UpdateServer } from './update-server.ts';

export interface LearnerAssignment {
  readonly self: Identity;
  readonly source: TaskSource;
  /** What its task must have in common with that of the watchdog. */
  readonly task: TaskIdentity;
  readonly mode: UpdateMode;
  /** Of the run's segments. */
  readonly name: string;
  readonly layout: LearnerLayout;
  /** Where they are. */
  readonly segments: SegmentOptions;
  /** Who owns them; numbers as text, as JSON has none so large. */
  readonly watchdog: { readonly pid: number; readonly startTicks: string; readonly pidNamespace: string };
}

export type LearnerNews =
  { readonly kind: 'ready' } | { readonly kind: 'failed'; readonly error: ReturnType<typeof pack> };

/** The event loop hears of a watchdog that is gone only now and then: computing comes first. */
const LISTEN_EVERY_MS = 50;
const SLEEP_MS = 5;
/** Between the closed line to a watchdog that was killed and its end. */
const ORPHAN_MS = 5000;
const ORPHAN_LOOK_MS = 5;

const {
  self,
  source,
  task: wanted,
  mode,
  name,
  layout,
  segments,
  watchdog,
} = JSON.parse(process.argv[2]!) as LearnerAssignment;
// Ctrl-C reaches all processes of a terminal; the watchdog decides what it means.
process.on('SIGINT', () => undefined);
const tell = (news: LearnerNews) => new Promise<void>((done) => process.send!(news, () => done()));

const owner = {
  pid: watchdog.pid,
  startTicks: BigInt(watchdog.startTicks),
  pidNamespace: BigInt(watchdog.pidNamespace),
};
const isWatched = () => isAlive(owner);

/** Without a watchdog there is nobody to train for, and nobody else who would remove its segments. */
async function leaveOrphaned(): Promise<never> {
  const deadlineMs = performance.now() + ORPHAN_MS;
  while (isWatched() && performance.now() < deadlineMs) await pause(ORPHAN_LOOK_MS);
  removeStaleSegments(segments.directory);
  process.exit(1);
}

try {
  const space = SharedSpace.create();
  const memory = LearnerMemory.attach(space, name, layout, { ...segments, isWatched });
  const task = await loadTask(source);
  checkSameTask(self, identityOf(task), wanted);
  const options = { self, task, mode, space, memory, name, segments };
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
    if (!process.connected) await leaveOrphaned();
  }
  worker.close();
  memory.close();
} catch (error) {
  // One that waits for a lock has not heard of the closed line.
  if (!process.connected || !isWatched()) await leaveOrphaned();
  await tell({ kind: 'failed', error: pack(error) });
  process.exitCode = 1;
}
if (process.connected) process.disconnect();
