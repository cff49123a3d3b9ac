/** A rank under mpirun with a communication thread, in which MPI lives; says what came out of each operation. */
import { CommunicationThread } from '../../src/communication/index.ts';
import { SharedSpace } from '../../src/memory/index.ts';
import { say, settings } from '../collectives/rank-program-start.ts';

const LENGTH = 2 ** 18;
const BURN_MS = 30_000;
const space = SharedSpace.create({ maxBytes: 64 * 2 ** 20 });
const sharedMemory = settings['sharedMemory'] === true;
const thread = await CommunicationThread.start({
  mpi: true,
  space,
  sharedMemory,
  measure: false,
  deadlineMs: 30_000,
});
const { rank, size } = thread.world;

const large = thread.allocate('float32', LENGTH);
large.view.fill(rank + 1);
const handle = thread.allReduce(large);
const endMs = performance.now() + BURN_MS;
while (!handle.settled && performance.now() < endMs);
const meanwhile = handle.settled;
handle.wait();

const small = thread.allocate('float32', 1);
small.view[0] = rank + 1;
await thread.allReduce(small, { algorithm: 'ring', op: 'product' });
const group = await thread.group([size - 1, 0]).catch((error: Error) => error);

const refusal = await thread.regroup().catch((error: Error) => error.message);
await thread.barrier();
const results = { meanwhile, sum: large.view[LENGTH - 1], product: small.view[0], group: typeof group };
say('results', { rank, size, transport: thread.transport, ...results, refusal });
await thread.close();
say('closed', { rank });
