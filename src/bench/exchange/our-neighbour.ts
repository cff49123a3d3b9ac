/**
 * Another tenant on the servers of `bench exchange`, who means badly when its turn says so: it floods servers with small requests,
 * asks for much and does not read it, asks for checkpoints and connects again and again, all by the public store. A program
 * that `our-side.ts` starts; nothing imports it. Invariant: between turns it does what the last turn said.
 */
import { UsageError } from '../../base/index.ts';
import { serveTurns } from '../allreduce/index.ts';
import type { Turn, TurnResult } from '../allreduce/index.ts';
import { RemoteStore } from '../../kvstore/index.ts';
import { NEIGHBOUR_MODES } from './measure-neighbour.ts';
import type { NeighbourMode } from './measure-neighbour.ts';
import { findServers, readAssignment, readRun } from './our-run.ts';

const SMALL_ELEMENTS = 16;
const LARGE_ELEMENTS = 2 ** 20;
const SMALL_REQUESTS = 2000;
const LARGE_REQUESTS = 100;
/** How long it does not read what it asked for. */
const DEAF_MS = 20;

const { control, number, folder } = readAssignment(process.argv[2]);
const run = readRun(folder);
const servers = await findServers(run, folder);
let mode: NeighbourMode = 'idle';
let isOver = false;
let wake: () => void = () => undefined;

const connect = (worker: number): Promise<RemoteStore> =>
  RemoteStore.connect({
    ...{ servers, worker, workers: 1, access: run.neighbour! },
    ...{ consistency: { kind: 'asynchronous' }, nonFinite: 'accept', sharedMemory: false },
  });
const store = await connect(0);
await store.init([
  { key: 'small', value: new Float32Array(SMALL_ELEMENTS) },
  { key: 'large', value: new Float32Array(LARGE_ELEMENTS) },
]);
const misbehaving = misbehave();
await serveTurns(control, number, take);
isOver = true;
wake();
await misbehaving;
await store.close();

function take({ algorithm }: Turn): Promise<TurnResult> {
  const asked = NEIGHBOUR_MODES.find((one) => one === algorithm);
  if (asked === undefined) {
    throw new UsageError(
      'INVALID_ARGUMENT',
      `the neighbour was asked to be '${algorithm}'; ask for one of ${NEIGHBOUR_MODES.join(', ')}`,
      { algorithm },
    );
  }
  mode = asked;
  wake();
  return Promise.resolve({ micros: 1, ok: true, algorithm });
}

async function misbehave(): Promise<void> {
  const gradient = new Float32Array(SMALL_ELEMENTS);
  const into = new Float32Array(LARGE_ELEMENTS);
  for (let step = 1; !isOver; step++) {
    if (mode === 'idle') {
      await new Promise<void>((resolve) => (wake = resolve));
      continue;
    }
    const small = Array.from({ length: SMALL_REQUESTS }, () => store.push({ key: 'small', gradient }));
    const large = Array.from({ length: LARGE_REQUESTS }, () => store.pull({ key: 'large', into }));
    // Requests leave in the turns of the event loop before it stops looking.
    await new Promise(setImmediate);
    Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, DEAF_MS);
    // What servers refuse is refused to it alone.
    await Promise.allSettled([...small, ...large, store.checkpoint(step)]);
    const other = await connect(1);
    await other.close();
  }
}
