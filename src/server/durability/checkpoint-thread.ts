/**
 * The entry of the checkpoint thread: hands questions to the desk until it is ended. Started by `CheckpointLink`, never
 * imported.
 */
import { parentPort, workerData } from 'node:worker_threads';
import { systemHost } from '../../sockets/index.ts';
import { CheckpointDesk } from './checkpoint-desk.ts';
import type { CheckpointThreadData, Question } from './checkpoint-desk.ts';

const desk = new CheckpointDesk(systemHost, workerData as CheckpointThreadData);
parentPort?.on('message', (question: Question) =>
  desk.take(question, (answer, transfer) => parentPort?.postMessage(answer, transfer)),
);
