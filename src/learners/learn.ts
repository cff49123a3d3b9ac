/**
 * What a process does that was started as a learner or as the server, when its script comes to the
 * call: works until the run is stopped or its watchdog is gone, and ends. Invariants: the watchdog
 * hears of every end that is not a kill; a watchdog that was killed leaves no segment behind as
 * long as one of its processes is left to remove it.
 */
import { setImmediate as yieldToEvents, setTimeout as pause } from 'node:timers/promises';
import { pack } from '../base/index.ts';
import { learnerAssignment } from '../launcher/index.ts';
import { isAlive, removeStaleSegments, SharedSpace } from '../memory/index.ts';
import type { SegmentOptions } from '../memory/index.ts';
import { SERVER } from './board.ts';
import type { Identity } from './board.ts';
import { Learner } from './learner.ts';
import { LearnerMemory } from './learner-memory.ts';
import type { LearnerLayout } from './learner-memory.ts';
import { checkSameTask, identityOf } from './task-check.ts';
import type { TaskIdentity } from './task-check.ts';
import type { LearnerTask } from './task.ts';
import type { UpdateMode } from './update-mode.ts';
import { UpdateServer } from './update-server.ts';

export interface LearnerAssignment {
  readonly self: Identity;
  /** What its task must have in common with that of the watchdog. */
  readonly task: TaskIdentity;
  readonly mode: UpdateMode;
  /** Of the run's segments. */
  readonly name: string;
  readonly layout: LearnerLayout;
  /** Where they are. */
  readonly segments: SegmentOptions;
  /** See `RunState`. */
  readonly stepOffset: number;
  /** Who owns them; numbers as text, as JSON has none so large. */
  readonly watchdog: { readonly pid: number; readonly startTicks: string; readonly pidNamespace: string };
}

export type LearnerNews =
  | { readonly kind: 'come' }
  | { readonly kind: 'ready' }
  | { readonly kind: 'failed'; readonly error: ReturnType<typeof pack> };

/** The event loop hears of a watchdog that is gone only now and then: computing comes first. */
const LISTEN_EVERY_MS = 50;
const SLEEP_MS = 5;
/** Between the closed line to a watchdog that was killed and its end. */
const ORPHAN_MS = 5000;
const ORPHAN_LOOK_MS = 5;

function tell(news: LearnerNews): Promise<void> {
  return new Promise((done) => {
    if (process.send) process.send(news, () => done());
    else done();
  });
}

/**
 * Returns in a process that the user has started, and ends one that was started as a learner or as
 * the server.
 */
export async function learnIfAssigned(task: LearnerTask): Promise<void> {
  const assignment = learnerAssignment() as LearnerAssignment | undefined;
  if (!assignment) return;
  // Ctrl-C may reach all processes of a terminal; the watchdog decides what it means.
  process.on('SIGINT', () => undefined);
  const { pid, startTicks, pidNamespace } = assignment.watchdog;
  const owner = { pid, startTicks: BigInt(startTicks), pidNamespace: BigInt(pidNamespace) };
  const isWatched = () => isAlive(owner);
  try {
    await tell({ kind: 'come' });
    await learn(task, assignment, isWatched);
  } catch (error) {
    // One that waits for a lock has not heard of the closed line.
    if (!process.connected || !isWatched()) await leaveOrphaned(assignment, isWatched);
    await tell({ kind: 'failed', error: pack(error) });
    process.exit(1);
  }
  process.exit(0);
}

async function learn(
  task: LearnerTask,
  assignment: LearnerAssignment,
  isWatched: () => boolean,
): Promise<void> {
  const { self, task: wanted, mode, name, layout, segments, stepOffset } = assignment;
  const space = SharedSpace.create();
  const memory = LearnerMemory.attach(space, name, layout, { ...segments, isWatched });
  checkSameTask(self, identityOf(task), wanted);
  const options = { self, task, mode, space, memory, name, segments, stepOffset };
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
    if (!process.connected) await leaveOrphaned(assignment, isWatched);
  }
  worker.close();
  memory.close();
}

/**
 * Without a watchdog there is nobody to train for, and nobody else who would remove its segments.
 */
async function leaveOrphaned({ segments }: LearnerAssignment, isWatched: () => boolean): Promise<never> {
  const deadlineMs = performance.now() + ORPHAN_MS;
  while (isWatched() && performance.now() < deadlineMs) await pause(ORPHAN_LOOK_MS);
  removeStaleSegments(segments.directory);
  process.exit(1);
}
