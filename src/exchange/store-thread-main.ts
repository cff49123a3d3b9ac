/**
 * The entry of a store's thread: connects stores to servers, makes the calls that its worker posts, and posts the answers. Run by
 * `store-thread.ts`, never imported. Invariants: what is posted is taken at once, also while the thread sleeps until a server
 * answers; the worker hears of every way in which the thread can end.
 */
import { receiveMessageOnPort, workerData } from 'node:worker_threads';
import { InternalError, pack } from '../base/index.ts';
import { ThreadRegions } from '../communication/index.ts';
import { Kernels } from '../kernels/index.ts';
import { linePumpOf, RemoteStore } from '../kvstore/index.ts';
import { SharedSpace } from '../memory/index.ts';
import type { Segment } from '../memory/index.ts';
import { systemHost } from '../sockets/index.ts';
import { wallMs } from './exchange.ts';
import { StoreWords, withParts } from './store-messages.ts';
import type {
  PackedList,
  PackedTensor,
  StoreCommand,
  StoreReport,
  StoreRequest,
  StoreRequests,
  StoreThreadData,
  ValuePlace,
} from './store-messages.ts';

const { port, words: buffer, memory, doorbell } = workerData as StoreThreadData;
const words = new StoreWords(buffer);
const space = SharedSpace.fromMemory(memory);
const kernels = Kernels.create(space);
const regions = new ThreadRegions(space);
const stores = new Map<number, RemoteStore>();
/** Lists that come again, by store and number. */
const lists = new Map<string, unknown>();
/** What had been posted when posts were last taken. */
let taken = 0;

const handlers: {
  readonly [Name in StoreRequest]: (
    ask: StoreRequests[Name]['ask'],
  ) => Promise<StoreRequests[Name]['answer']>;
} = {
  async connect({ store, options }) {
    const opened = await RemoteStore.connect({ ...options, space, kernels });
    stores.set(store, opened);
    const { sharesMemory, sharesSome } = opened;
    return { sharesMemory, sharesSome };
  },
  async call({ store: number, method, args }) {
    const store = storeOf(number);
    const unpacked = args.map((part) => unpackedPart(store, number, part)) as never[];
    const call = store[method].bind(store) as (...given: never[]) => Promise<unknown>;
    const result = await call(...unpacked);
    const endedMs = wallMs();
    // What is pulled is where the worker wanted it.
    return { result: method === 'pullState' ? undefined : result, endedMs };
  },
  values({ store: number, keys }) {
    const store = storeOf(number);
    const places = keys.map((key) => placeOf(store.value(key)));
    return Promise.resolve({ places, found: store.foundValues });
  },
  forget({ segments }) {
    for (const segment of segments) regions.forget(segment);
    return Promise.resolve(undefined);
  },
  async close({ store }) {
    await storeOf(store).close();
    return undefined;
  },
  end: () => Promise.resolve(undefined),
};

function storeOf(number: number): RemoteStore {
  const store = stores.get(number);
  if (store) return store;
  throw new InternalError(
    'BROKEN_INVARIANT',
    `store ${number} was called, which its thread has not connected; please report it`,
    { store: number, known: [...stores.keys()] },
  );
}

function unpackedPart(store: RemoteStore, number: number, part: unknown): unknown {
  const withTensors = (packed: unknown) => withParts(packed, (one) => tensorOf(store, one));
  if (typeof part !== 'object' || part === null || !('list' in part)) return withTensors(part);
  const { list, entries } = part as PackedList;
  const name = `${number} ${list}`;
  if (entries !== undefined) lists.set(name, withTensors(entries));
  return lists.get(name);
}

function tensorOf(store: RemoteStore, part: object): unknown {
  if (!('region' in part)) return undefined;
  const { region, lent } = part as PackedTensor;
  // The very object, by which the store knows that nothing has to move.
  return (lent === undefined ? undefined : store.value(lent)) ?? regions.unpack(region);
}

function placeOf(value: ReturnType<RemoteStore['value']>): ValuePlace | undefined {
  const segment: Segment | undefined = value && space.segmentAt(value);
  if (value === undefined || segment === undefined) return undefined;
  const { name, directory, byteOffset, byteLength } = segment;
  return {
    range: { name, directory, byteOffset, byteLength },
    ...{ byteOffset: value.byteOffset, length: value.length },
  };
}

function post(report: StoreReport): void {
  port.postMessage(report);
  words.answered();
}

async function answer<Name extends StoreRequest>(
  id: number,
  what: Name,
  ask: StoreRequests[Name]['ask'],
): Promise<void> {
  try {
    post({ kind: 'answer', id, answer: await handlers[what](ask) });
  } catch (error) {
    post({ kind: 'refusal', id, error: pack(error) });
  }
  // A store that is still being connected would go on trying.
  if (what === 'end') process.exit();
}

function obey(command: StoreCommand): void {
  switch (command.kind) {
    case 'request':
      return void answer(command.id, command.what, command.ask);
    case 'adopt':
      return regions.adopt(command.segment, command.range);
    case 'forget':
      return void regions.forget(command.segment);
  }
}

function takePosts(): void {
  taken = words.posts;
  for (let next = receiveMessageOnPort(port); next; next = receiveMessageOnPort(port)) {
    obey(next.message as StoreCommand);
  }
}

words.enrol();
linePumpOf(systemHost, space).hear({
  fd: doorbell,
  asleep: () => {
    words.asleep();
    return words.posts !== taken;
  },
  awake: () => {
    words.awake();
    if (words.posts !== taken) takePosts();
  },
});
port.on('message', (command: StoreCommand) => {
  obey(command);
  takePosts();
});
