/**
 * The other process of the TCP tests: joins as member 1 and sends to member 0 without end, so that it can be killed at
 * any moment. Its arguments are the secret and, as JSON, the address of member 0; it prints its own address.
 */
import { SharedSpace } from '../../src/memory/index.ts';
import { createTcpTransport } from '../../src/transport/tcp/tcp-transport.ts';

const [secret, address] = process.argv.slice(2) as [string, string];
const space = SharedSpace.create({ maxBytes: 64 * 2 ** 20 });
const transport = await createTcpTransport({ space, secret });
transport.listen({ notice: () => undefined, lost: () => process.exit(0), mismatch: () => process.exit(1) });
console.log(JSON.stringify(transport.address));
const zero = { member: 0, title: 'the test', host: 'here', address: JSON.parse(address) as never };
await transport.connect(1, [zero]);
const region = space.allocate(2 ** 20).allocate('uint8', 2 ** 20);
for (let sequence = 0; ; sequence++) {
  const sending = transport.send(0, { group: 1, tag: 1, sequence, step: 0, signature: 7, weight: 1 }, region);
  while (!sending.done) if (!transport.poll()) transport.block(100);
}
