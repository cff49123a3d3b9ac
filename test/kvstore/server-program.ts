/** A server process for tests that kill it: starts at a given port, with one service, and says when it is there. */
import { ParameterServer } from '../../src/server/index.ts';
import type { ServiceOptions } from '../../src/server/index.ts';
import { listen, readAssignment, say } from './kill-program.ts';

export interface ServerAssignment {
  readonly port: number;
  readonly cores: number;
  readonly service: ServiceOptions;
}

const { port, cores, service } = readAssignment<ServerAssignment>();
say('loaded');
const server = await ParameterServer.start({
  port,
  cores,
  log: (line) => process.stderr.write(`${line}\n`),
});
server.createService(service);
say('ready');
const stopListening = listen(() => {
  stopListening();
  void server.close();
});
