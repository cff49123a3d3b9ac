/**
 * A process that listens (argument: server, transport or scheduler) and has no file descriptor left. Prints its port; when it is told
 * by a line on its input that somebody waits at its door, prints for a while's log lines and processor time; then frees its
 * descriptors. Ends with its input.
 */
import { once } from 'node:events';
import { closeSync, openSync } from 'node:fs';
import { connect } from 'node:net';
import { createInterface } from 'node:readline';
import { setTimeout as sleep } from 'node:timers/promises';
import { Scheduler } from '../../src/cluster/index.ts';
import { SharedSpace } from '../../src/memory/index.ts';
import { ParameterServer } from '../../src/server/index.ts';
import { createTcpTransport } from '../../src/transport/tcp/tcp-transport.ts';
import { SECRET } from '../support/secrets.ts';

const MEASURED_MS = 1000;
const lines: string[] = [];
const log = (line: string): void => void lines.push(line);
const tell = (what: object): void => void process.stdout.write(`${JSON.stringify(what)}\n`);

const listeners = {
  server: async () => (await ParameterServer.start({ log })).port,
  scheduler: async () => {
    const { address } = await Scheduler.start({ size: 2, secret: SECRET, log, heartbeatMs: 100 });
    return Number(address.split(':')[1]);
  },
  transport: async () => {
    const transport = await createTcpTransport({ space: SharedSpace.create(), secret: SECRET, log });
    await transport.connect(0, []);
    const turn = (): void => {
      transport.block(20);
      transport.poll();
      setImmediate(turn);
    };
    turn();
    return transport.address.port;
  },
};

const told = createInterface(process.stdin)[Symbol.asyncIterator]();
const port = await listeners[process.argv[2] as keyof typeof listeners]();
// All threads are at work, and all that is loaded late is loaded, when a stranger has been sent away.
const stranger = connect(port, '127.0.0.1');
stranger.on('error', () => undefined);
stranger.write('GET / HTTP/1.1\r\nHost: somebody.who.speaks.another.protocol\r\n\r\n');
await once(stranger.resume(), 'close');
lines.length = 0;
const held: number[] = [];
try {
  for (;;) held.push(openSync('/dev/null', 'r'));
} catch {
  // There are none left.
}
tell({ port });
await told.next();
const [before, startedAt] = [process.cpuUsage(), performance.now()];
await sleep(MEASURED_MS);
const { user, system } = process.cpuUsage(before);
const report = { busy: (user + system) / 1000 / (performance.now() - startedAt) };
for (const fd of held) closeSync(fd);
tell({ ...report, lines });
await told.next();
process.exit();
