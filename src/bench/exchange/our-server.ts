/**
 * A server of ours in `bench exchange` as a process of its own (NCC, NCS). A program that `our-side.ts` starts; nothing
 * imports it. It takes no turns: the connection to the coordinator only says that it is there, and when to end.
 */
import { InternalError } from '../../base/index.ts';
import { serveTurns } from '../allreduce/index.ts';
import { readAssignment, readRun, startServer } from './our-run.ts';

const { control, number, folder } = readAssignment(process.argv[2]);
const server = await startServer(readRun(folder), number, folder);
await serveTurns(control, number, () =>
  Promise.reject(
    new InternalError('BROKEN_INVARIANT', `server ${number} was asked for a turn; ask the workers`),
  ),
);
await server.close();
