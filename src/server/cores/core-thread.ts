/**
 * The entry of a core's thread: runs the loop until the office closes it. Started by `ParameterServer`, never imported.
 * Invariant: the office hears of every way in which it can end.
 */
import { workerData } from 'node:worker_threads';
import type { MessagePort } from 'node:worker_threads';
import { pack } from '../../base/index.ts';
import { SharedSpace } from '../../memory/index.ts';
import type { WasmMemory } from '../../memory/index.ts';
import { CoreLoop } from './core-loop.ts';
import type { CoreOptions } from './core-loop.ts';
import { Office } from './office.ts';

export interface CoreThreadData {
  readonly port: MessagePort;
  readonly memory: WasmMemory;
  readonly options: CoreOptions;
}

const { port, memory, options } = workerData as CoreThreadData;
const office = new Office(port);
try {
  new CoreLoop(SharedSpace.fromMemory(memory), office, options).run();
  office.ended(null);
} catch (error) {
  office.ended(pack(error));
}
port.close();
