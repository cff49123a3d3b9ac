/**
 * A member of one tenant that never lets the server's socket run dry: it repeats small requests as fast as a thread of its own
 * can, and throws the answers away. Started by a test, never imported. Invariant: it ends with its thread.
 */
import { parentPort, workerData } from 'node:worker_threads';
import type { ServiceAccess } from '../../src/server/index.ts';
import { encodeHead } from '../../src/server/wire/frame.ts';
import { pushRequest, RawWorker } from './raw-worker.ts';

export interface FloodData {
  readonly port: number;
  readonly access: ServiceAccess;
}

const REQUESTS = 2000;

const { port, access } = workerData as FloodData;
const worker = await RawWorker.admitted({ port }, access);
await worker.openKey(new Float32Array(16));
worker.socket.removeAllListeners('data');
worker.socket.resume();
const body = Buffer.alloc(64);
const frame = Buffer.concat([encodeHead({ id: 3, ...pushRequest(1) }, body.length), body]);
const many = Buffer.concat(Array.from({ length: REQUESTS }, () => frame));
const pour = (): void => {
  while (worker.socket.write(many));
};
worker.socket.on('drain', pour);
pour();
parentPort!.postMessage('poured');
