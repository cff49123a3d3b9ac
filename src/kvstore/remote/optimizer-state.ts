/**
 * What the optimizer keeps on servers, on its way: slots of keys are fetched, or put there, in passes of a few megabytes, one
 * after the other on each core. Not for every step: it goes by the connections, also on one host. Terms: a slot is what an
 * optimizer keeps for each element, as momentum; a window is the elements of one pass.
 * Invariants: in synchronous training all that is fetched is of the same step; no memory is taken beyond a window for each core.
 */
import { keyText, UsageError } from '../../base/index.ts';
import type { StoreKey } from '../../base/index.ts';
import type { Region, Segment, SharedSpace } from '../../memory/index.ts';
import { joined, MAX_STEPS, windowOf } from '../../server/index.ts';
import type { ByteRange } from '../../sockets/index.ts';
import type { StoreTensor as Tensor } from '../kv-store.ts';
import type { CoreLine } from './core-line.ts';
import type { KnownKey } from './key-table.ts';
import { checkLength, elementsOf } from './tensors.ts';

/** What an optimizer keeps of a key, as that of one device would. */
export interface KeyState {
  readonly key: StoreKey;
  /** Updates that the key has seen. */
  readonly steps: number;
  /** By the optimizer's names, as `exp_avg`; each as long as the key. None for an optimizer that keeps nothing. */
  readonly slots: Readonly<Record<string, Tensor>>;
}

/** Elements that are brought when they are needed. */
export interface ElementSource {
  readonly length: number;
  /** Fills the target with those from `first` on. */
  read(first: number, target: Float32Array): void;
}

/** In the place of elements that the servers were given before, piece by piece. */
export interface GivenElements {
  readonly length: number;
  readonly isGiven: true;
}

/** A state to go on from. */
export interface InitialKeyState extends Omit<KeyState, 'slots'> {
  readonly slots: Readonly<Record<string, Tensor | ElementSource | GivenElements>>;
  /** Of the key itself. Default: what it has by `init`. */
  readonly value?: Tensor | ElementSource | GivenElements | undefined;
}

/** A state for a key that is there. */
export interface GivenState {
  readonly known: KnownKey;
  readonly state: InitialKeyState;
}

export interface StateExchangeOptions {
  readonly worker: number;
  readonly lines: readonly CoreLine[];
  readonly space: SharedSpace;
  readonly isSynchronous: boolean;
}

/** Elements of one slot of one piece that travel in one message. */
interface Window {
  readonly core: number;
  readonly tensor: Tensor | ElementSource;
  /** Where the elements lie in the key. */
  readonly ranges: readonly ByteRange[];
  readonly count: number;
  readonly request: { readonly piece: number; readonly slot: string | undefined; readonly first: number };
}

const WINDOW_ELEMENTS = 1024 * 1024;

export class StateExchange {
  readonly #options: StateExchangeOptions;
  /** By core, for tensors that lie elsewhere; one for each, so that an answer that nobody awaits any more harms no other. */
  readonly #staging = new Map<number, { readonly segment: Segment; readonly room: Region<'float32'> }>();

  constructor(options: StateExchangeOptions) {
    this.#options = options;
  }

  /** Into the given tensors, or new ones. */
  async fetch(known: KnownKey, into?: KeyState['slots']): Promise<KeyState> {
    const { steps, names } = await this.#kept(known);
    const slots =
      into ?? Object.fromEntries(names.map((name) => [name, new Float32Array(known.length)] as const));
    this.#checkSlots(known, names, slots);
    await this.#eachWindow(known, Object.entries(slots), (window) => this.#fetch(window, known));
    return { key: known.key, steps, slots };
  }

  async fetchSlot(known: KnownKey, slot: string, into: Tensor): Promise<void> {
    checkLength(known.key, `given for slot '${slot}' of`, into.length, known.length);
    await this.#kept(known);
    await this.#eachWindow(known, [[slot, into]], (window) => this.#fetch(window, known));
  }

  /**
   * Elements of a table from `first` on, or of a slot of it, for whoever has no memory for all of
   * it. The target is in the store's space.
   */
  async read(
    known: KnownKey,
    slot: string | undefined,
    first: number,
    target: Region<'float32'>,
  ): Promise<void> {
    const end = first + target.length;
    await Promise.all(
      known.pieces.map(async ({ core, number, start, length }) => {
        const [from, to] = [Math.max(first, start), Math.min(end, start + length)];
        if (from >= to) return;
        const request = { op: 'pull-state', piece: number, slot, first: from - start, count: to - from };
        const answer = await this.#line(core).request(request, [], () => [
          target.slice(from - first, to - from),
        ]);
        this.#checkStep(known, answer.version as number);
      }),
    );
  }

  /** The other way round, before `give`, by the first worker alone. */
  async write(
    known: KnownKey,
    slot: string | undefined,
    first: number,
    source: Region<'float32'>,
  ): Promise<void> {
    const end = first + source.length;
    await Promise.all(
      known.pieces.map(async ({ core, number, start, length }) => {
        const [from, to] = [Math.max(first, start), Math.min(end, start + length)];
        if (from >= to) return;
        const request = { op: 'push-state', piece: number, slot, first: from - start, count: to - from };
        await this.#line(core).request(request, [source.slice(from - first, to - from)]);
      }),
    );
  }

  /** To the servers, by the first worker; all have come when `meet` is done. */
  async give(states: readonly GivenState[], meet: () => Promise<unknown>): Promise<void> {
    // On all workers, so that all of them hear of a mistake that all have made.
    for (const state of states) await this.#checkGiven(state);
    const put = this.#options.worker === 0 ? this.#putAll(states) : Promise.resolve();
    // Others wait for one that has failed, too; they see that the state is not there.
    await put.catch(() => undefined);
    await meet();
    await put;
    for (const state of states) await this.#follow(state);
  }

  /** The same where nobody waits for the others: by the first worker, before there are any. */
  async giveAlone(states: readonly GivenState[]): Promise<void> {
    const [first] = states;
    const { worker } = this.#options;
    if (first && worker > 0) {
      throw new UsageError(
        'INVALID_ARGUMENT',
        `worker ${worker} gave key ${keyText(first.known.key)} a state where workers do not wait for each other; let worker 0 do so before the others come`,
        { worker, key: first.known.key },
      );
    }
    for (const state of states) await this.#checkGiven(state);
    await this.#putAll(states);
    // Servers count the pushes of every worker from the first again.
    for (const { known } of states) known.step = 0;
  }

  close(): void {
    for (const { segment } of this.#staging.values()) segment.close();
    this.#staging.clear();
  }

  async #checkGiven({ known, state: { steps, slots, value } }: GivenState): Promise<void> {
    const { worker } = this.#options;
    const { key } = known;
    if (!(Number.isInteger(steps) && steps >= 0 && steps <= MAX_STEPS)) {
      throw new UsageError(
        'INVALID_ARGUMENT',
        `worker ${worker} gave key ${keyText(key)} the state after ${steps} steps; give a whole number from 0 to ${MAX_STEPS}`,
        { worker, key, steps: String(steps) },
      );
    }
    const [first] = known.pieces;
    if (first) this.#checkSlots(known, (await this.#ask(first)).names, slots);
    if (value) checkLength(key, 'given the value of', value.length, known.length);
  }

  async #putAll(states: readonly GivenState[]): Promise<void> {
    for (const { known, state } of states) {
      const { slots, value } = state;
      const all = [...Object.entries(slots), ...(value ? [[undefined, value] as const] : [])];
      const tensors = all.flatMap(([slot, one]) => ('isGiven' in one ? [] : [[slot, one] as const]));
      await this.#eachWindow(known, tensors, (window) => this.#put(window));
      const request = { op: 'set-steps', steps: state.steps };
      await Promise.all(
        known.pieces.map(({ core, number }) => this.#line(core).request({ ...request, piece: number })),
      );
    }
  }

  /** Counts on from where the servers are now. */
  async #follow({ known, state: { steps: expected } }: GivenState): Promise<void> {
    const { worker } = this.#options;
    const answers = await Promise.all(known.pieces.map((piece) => this.#ask(piece)));
    const versions = answers.map(({ version }) => version);
    known.step = Math.min(expected, ...versions);
    const actual = versions.find((version) => version !== expected);
    if (actual === undefined) return;
    throw new UsageError(
      'INVALID_ARGUMENT',
      `worker ${worker} gave key ${keyText(known.key)} the state after ${expected} steps, the servers have it after ${actual}; give the same on all workers, and see whether worker 0 has failed`,
      { worker, key: known.key, expected, actual },
    );
  }

  /** What all pieces of a key say, which is the same between two steps. */
  async #kept(known: KnownKey): Promise<{ readonly steps: number; readonly names: readonly string[] }> {
    const answers = await Promise.all(known.pieces.map((piece) => this.#ask(piece)));
    for (const { version } of answers) this.#checkStep(known, version);
    const steps = answers.length === 0 ? known.step : Math.min(...answers.map(({ version }) => version));
    return { steps, names: answers[0]?.names ?? [] };
  }

  async #ask({ core, number }: KnownKey['pieces'][number]): Promise<{
    readonly version: number;
    readonly names: readonly string[];
  }> {
    const answer = await this.#line(core).request({ op: 'state', piece: number });
    return { version: answer.version as number, names: answer.slots as string[] };
  }

  /** Cores work side by side. All have ended when this has, so that nothing arrives afterwards. */
  async #eachWindow(
    known: KnownKey,
    tensors: readonly (readonly [slot: string | undefined, tensor: Tensor | ElementSource])[],
    move: (window: Window) => Promise<void>,
  ): Promise<void> {
    const byCore = this.#options.lines.map(async (_, core) => {
      for (const piece of known.pieces.filter((one) => one.core === core)) {
        for (const [slot, tensor] of tensors) {
          for (const window of windowsOf(piece, slot, tensor)) await move(window);
        }
      }
    });
    const failed = (await Promise.allSettled(byCore)).find(({ status }) => status === 'rejected');
    if (failed) throw (failed as PromiseRejectedResult).reason;
  }

  async #fetch({ core, tensor, ranges, count, request }: Window, known: KnownKey): Promise<void> {
    const direct = this.#rangesIn(tensor, ranges);
    const room = direct ? undefined : this.#room(core).slice(0, count);
    const answer = await this.#line(core).request(
      { op: 'pull-state', ...request, count },
      [],
      () => direct ?? [room!],
    );
    this.#checkStep(known, answer.version as number);
    if (!room) return;
    visit(ranges, (at, from, length) =>
      elementsOf(tensor as Tensor).set(room.view.subarray(from, from + length), at),
    );
  }

  async #put({ core, tensor, ranges, count, request }: Window): Promise<void> {
    const direct = this.#rangesIn(tensor, ranges);
    const room = direct ? undefined : this.#room(core).slice(0, count);
    if (room) {
      visit(ranges, (at, to, length) => {
        const target = room.view.subarray(to, to + length);
        if ('read' in tensor) tensor.read(at, target);
        else target.set(elementsOf(tensor).subarray(at, at + length));
      });
    }
    await this.#line(core).request({ op: 'push-state', ...request, count }, direct ?? [room!]);
  }

  /** Undefined: the tensor lies where connections do not reach. */
  #rangesIn(tensor: Tensor | ElementSource, ranges: readonly ByteRange[]): readonly ByteRange[] | undefined {
    if (tensor instanceof Float32Array || 'read' in tensor || tensor.space !== this.#options.space)
      return undefined;
    return ranges.map(({ byteOffset, byteLength }) => ({
      byteOffset: tensor.byteOffset + byteOffset,
      byteLength,
    }));
  }

  #room(core: number): Region<'float32'> {
    let staging = this.#staging.get(core);
    if (staging === undefined) {
      const segment = this.#options.space.allocate(4 * WINDOW_ELEMENTS);
      this.#staging.set(core, (staging = { segment, room: segment.allocate('float32', WINDOW_ELEMENTS) }));
    }
    return staging.room;
  }

  #line(core: number): CoreLine {
    return this.#options.lines[core]!;
  }

  #checkStep({ key, step }: KnownKey, actual: number): void {
    const { worker, isSynchronous } = this.#options;
    if (!isSynchronous || actual === step) return;
    throw new UsageError(
      'INVALID_ARGUMENT',
      `worker ${worker} asked for the optimizer's state of key ${keyText(key)} after step ${step}, a server has it after step ${actual}; ask between two steps of all workers, when pushes are answered and applied`,
      { worker, key, expected: step, actual },
    );
  }

  #checkSlots({ key, length }: KnownKey, expected: readonly string[], slots: InitialKeyState['slots']): void {
    const actual = Object.keys(slots);
    if (actual.length !== expected.length || !expected.every((name) => Object.hasOwn(slots, name))) {
      const print = (names: readonly string[]) => names.join(', ') || 'nothing';
      throw new UsageError(
        'INVALID_ARGUMENT',
        `worker ${this.#options.worker} named ${print(actual)} of key ${keyText(key)}, for which the optimizer on the servers keeps ${print(expected)}; set the same optimizer before`,
        { worker: this.#options.worker, key, expected, actual },
      );
    }
    for (const name of expected) checkLength(key, `given slot '${name}' of`, slots[name]!.length, length);
  }
}

function* windowsOf(
  piece: KnownKey['pieces'][number],
  slot: string | undefined,
  tensor: Tensor | ElementSource,
): Iterable<Window> {
  const { core, number, start, ranges, elements } = piece;
  const whole = joined(
    ranges.map(([from, length]) => ({ byteOffset: 4 * (start + from), byteLength: 4 * length })),
  );
  for (let first = 0; first < elements; first += WINDOW_ELEMENTS) {
    const count = Math.min(WINDOW_ELEMENTS, elements - first);
    const window = windowOf(whole, 4 * first, 4 * count);
    yield { core, tensor, count, ranges: window, request: { piece: number, slot, first } };
  }
}

/** Calls back with each range of a key: where it begins in the key, where in the window, and its elements. */
function visit(
  ranges: readonly ByteRange[],
  act: (inKey: number, inWindow: number, length: number) => void,
): void {
  let at = 0;
  for (const { byteOffset, byteLength } of ranges) {
    act(byteOffset / 4, at, byteLength / 4);
    at += byteLength / 4;
  }
}
