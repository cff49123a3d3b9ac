/** A server process for tests that kill it: starts at a given port, with one service, and says when it is there. */
import { ParameterServer } from '../../src/server/index.ts';
import type { ServiceOptions } from '../../src/server/index.ts';

export interface ServerAssignment {
  readonly port: number;
  readonly cores: number;
  readonly service: ServiceOptions;
}

const { port, cores, service } = JSON.parse(process.argv[2]!) as ServerAssignment;
const server = await ParameterServer.start({
  port,
  cores,
  log: (line) => process.stderr.write(`${line}\n`),
});
server.createService(service);
process.stdout.write('ready\n');
// The end of its input is the end of the test.
process.stdin.resume().once('end', () => void server.close().then(() => process.exit()));
