/**
 * A rank whose communication thread is ended from outside, as running out of memory would, while its caller awaits an
 * operation or is blocked in it; the other rank waits for it. Says how the operations ended.
 */
import type { Worker } from 'node:worker_threads';
import { TributaryError } from '../../src/base/index.ts';
import { CommunicationThread } from '../../src/communication/index.ts';
import type { TransportChoice } from '../../src/launcher/index.ts';
import { SharedSpace } from '../../src/memory/index.ts';
import { say, settings } from '../collectives/rank-program-start.ts';

const workers: Worker[] = [];
process.on('worker', (worker) => workers.push(worker));

const { scheduler, secret } = settings;
const thread = await CommunicationThread.start({
  ...{ scheduler, secret, measure: false, deadlineMs: 30_000 },
  space: SharedSpace.create({ maxBytes: 64 * 2 ** 20 }),
  transport: settings.transport as TransportChoice,
});
const { rank } = thread.world;

async function ended(how: string, action: () => unknown): Promise<void> {
  try {
    await action();
    say('ended', { how, rank, name: 'none' });
  } catch (error) {
    if (!(error instanceof TributaryError)) throw error;
    say('ended', { how, rank, name: error.name, code: error.code, message: error.message });
  }
}

await thread.barrier();
if (rank === 0) {
  const handle = thread.barrier({ name: 'with the dead' });
  await ended('peer', () => handle.wait());
} else {
  const handles = [1, 2, 3].map((tag) => thread.barrier({ tag, name: 'never called by the other' }));
  const awaited = handles[0]!.then(() => undefined);
  const request = thread.regroup();
  // The thread stops without this one's event loop, which gets no event while it is blocked.
  void workers[0]!.terminate();
  await ended('wait', () => handles[1]!.wait());
  await ended('await', () => awaited);
  await ended('later', () => handles[2]!.wait());
  await ended('request', () => request);
  await ended('new', () => thread.barrier());
}
await thread.close();
say('closed', { rank });
process.stdin.unref();
