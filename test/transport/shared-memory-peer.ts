/**
 * The other process of the shared-memory tests. It swaps addresses with its parent over the channel of `fork` and does
 * what its first argument says, until it is killed or told to end.
 */
import { once } from 'node:events';
import { SharedSpace } from '../../src/memory/index.ts';
import type { MemberAddress } from '../../src/transport/index.ts';
import { createSharedMemoryTransport } from '../../src/transport/shared-memory/index.ts';
import { envelope, runAsRank } from './shared-memory-pair.ts';

const [role, directory, seed] = process.argv.slice(2) as [string, string, string];
const space = SharedSpace.create({ maxBytes: 256 * 2 ** 20 });
const transport = createSharedMemoryTransport({ space, directory, session: 'child' });
const notices: string[] = [];
transport.listen({
  notice: (_peer, text) => void notices.push(text),
  lost: () => process.exit(3),
  mismatch: () => process.exit(4),
});
const answer = once(process, 'message');
process.send!(transport.address);
const [parent] = (await answer) as [MemberAddress];
await transport.connect(1, [parent]);
const segment = space.createSegment(`child-${process.pid}`, 8 * 2 ** 20, { directory });

function waitFor(condition: () => boolean): void {
  while (!condition()) if (!transport.poll()) transport.block(1000);
}

if (role === 'scenarios') {
  await runAsRank(1, Number(seed), directory, { space, transport });
  await transport.close();
  segment.close();
  process.disconnect();
} else if (role === 'echo') {
  for (const [step, length] of [1, 1000, 1_000_000].entries()) {
    const receiving = transport.receive(0, envelope({ step }), segment.region('float32', 0, length));
    waitFor(() => receiving.done);
    const reply = segment.region('float32', 4 * 2 ** 20, length);
    for (let i = 0; i < length; i++) reply.view[i] = Number(receiving.region.view[i]) + 1;
    receiving.release();
    const sending = transport.send(0, envelope({ step }), reply);
    waitFor(() => sending.done);
  }
  await transport.close();
  segment.close();
  process.disconnect();
} else if (role === 'writer') {
  const borrowing = transport.inPlace.borrow(0, envelope(), 'int32', 2);
  waitFor(() => borrowing.done);
  const words = borrowing.region.view as Int32Array;
  transport.inPlace.enter(envelope());
  transport.notify(0, 'writing');
  waitFor(() => notices.includes('cancel'));
  // Whoever cancelled must not go on before these writes.
  for (let i = 0; i < 1_000_000; i++) words[0] = i;
  words[1] = 1;
  transport.inPlace.leave();
  waitFor(() => false);
} else {
  // 'talk': messages for ever, so that it is killed in the middle of one.
  transport.notify(0, 'ready');
  const region = segment.allocate('float32', 2000);
  for (let sequence = 0; ; sequence++) {
    const sending = transport.send(0, envelope({ sequence }), region);
    waitFor(() => sending.done);
  }
}
