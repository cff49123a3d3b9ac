/**
 * The entry of a core's thread: runs the loop until the office closes it. Started by `ParameterServer`, never imported.
 * Invariant: the office hears of every way in which it can end.
 */
import { receiveMessageOnPort, workerData } from 'node:worker_threads';
import type { MessagePort } from 'node:worker_threads';
import { pack } from '../../base/index.ts';
import { Kernels, loadOwnRules } from '../../kernels/index.ts';
import { SharedSpace } from '../../memory/index.ts';
import type { WasmMemory } from '../../memory/index.ts';
import { systemHost } from '../../sockets/index.ts';
import { CoreLoop } from './core-loop.ts';
import type { CoreOptions } from './core-loop.ts';
import { Office } from './office.ts';
import type { ToCore } from './office.ts';

export interface CoreThreadData {
  readonly port: MessagePort;
  readonly memory: WasmMemory;
  readonly options: Omit<CoreOptions, 'rules'>;
  /** The path of the module with users' rules, if there is one. */
  readonly rulesPath: string | undefined;
}

const { port, memory, options, rulesPath } = workerData as CoreThreadData;
const office = new Office({
  post: (message) => port.postMessage(message),
  take: () => receiveMessageOnPort(port)?.message as ToCore | undefined,
});
try {
  const kernels = Kernels.create(SharedSpace.fromMemory(memory));
  const rules = rulesPath === undefined ? undefined : await loadOwnRules(rulesPath);
  new CoreLoop(kernels, office, { ...options, rules }, systemHost).run();
  office.ended(null);
} catch (error) {
  office.ended(pack(error));
}
port.close();
