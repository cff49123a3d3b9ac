/**
 * Exchanges of lists of keys with all cores. What a list consists of, and where its tensors lie in
 * shared memory, is told to each core once; afterwards an exchange is a short message, or, between
 * hosts, one for every megabyte, so that servers sum and answer the first while the last is on its
 * way. Invariants: a list is known to a core before it is used; a number means one list at a time,
 * and as long as an answer is awaited, since a request may be sent again.
 */
import { keyName, unpack, UsageError } from '../../base/index.ts';
import type { PackedError, TributaryError } from '../../base/index.ts';
import type { Region } from '../../memory/index.ts';
import { joined } from '../../server/index.ts';
import type { Header, ListEntry, PieceResult } from '../../server/index.ts';
import type { ByteRange } from '../../sockets/index.ts';
import type { CoreLine } from './core-line.ts';
import { sumInOrder } from './held-steps.ts';
import type { RemoteKeyStatus } from './held-steps.ts';
import type { KnownKey } from './key-table.ts';
import { allAnswered, refusalOf } from './push-answers.ts';
import type { Told } from './recovery.ts';
import type { StoreMemory } from './tensors.ts';

/** One key of an exchange, with the memory of its tensors. */
export interface Exchanged {
  readonly key: KnownKey;
  readonly gradient: Region<'float32'> | undefined;
  /** Where the value goes; undefined: nowhere, or it is read in place. */
  readonly into: Region<'float32'> | undefined;
  readonly isInPlace: boolean;
}

export interface ExchangeCall {
  readonly push: boolean;
  readonly pull: boolean;
  /** Whether it pulls what is held, not values. */
  readonly fromHeld: boolean;
  /** One for each key. */
  readonly steps: readonly number[];
  readonly samples: number;
  /** Keys whose values are to be left out. */
  readonly skipped: readonly number[];
  /** Whether servers answer with sums of squares. */
  readonly isHeld: boolean;
  /** Learning rate of the pushes; undefined: the last one. */
  readonly lr?: number | undefined;
}

/** One message of an exchange: some entries of a core's list, and their bytes. */
interface Message {
  /** Which of the numbers of the list. */
  readonly part: number;
  /** In the part. */
  readonly first: number;
  /** Of each entry the key's place in the list. */
  readonly keys: readonly number[];
  /** And which piece of the key it is. */
  readonly pieces: readonly number[];
  readonly gradient: readonly ByteRange[];
  /** By entry, because one that failed brings nothing. */
  readonly into: readonly (readonly ByteRange[])[];
  readonly allInto: readonly ByteRange[];
}

/** What one core has of a list. */
interface CorePart {
  readonly core: number;
  readonly messages: readonly Message[];
}

interface Entry {
  readonly key: number;
  readonly piece: number;
  readonly gradient: readonly ByteRange[];
  readonly into: readonly ByteRange[];
  readonly bytes: number;
}

interface KnownList {
  /** One for each part that is announced by itself. */
  readonly numbers: readonly number[];
  readonly entries: readonly Exchanged[];
  readonly parts: readonly CorePart[];
  /** Exchanges whose answers are awaited. */
  uses: number;
  /** Settles when all answers so far have come. */
  answered: Promise<unknown>;
}

const MESSAGE_BYTES = 1024 * 1024;
/** What is announced or asked in one message, and answered in one: each takes up to 200 bytes. */
const ENTRIES_A_PART = 2048;
/** Then the oldest list that no answer is awaited for is forgotten. */
const MAX_LISTS = 1024;
const NOTHING: readonly ByteRange[] = [];

export class ExchangeLists implements Told {
  readonly #lines: readonly CoreLine[];
  readonly #memory: StoreMemory;
  /** For each core: whether it uses this process's memory in place. */
  readonly #isShared: readonly boolean[];
  readonly #known = new Map<string, KnownList>();
  /** Numbers that no list has. */
  readonly #free: number[];
  readonly #maxLists: number;

  constructor(
    lines: readonly CoreLine[],
    memory: StoreMemory,
    isShared: readonly boolean[],
    maxLists = MAX_LISTS,
  ) {
    this.#lines = lines;
    this.#memory = memory;
    this.#isShared = isShared;
    this.#maxLists = maxLists;
    this.#free = Array.from({ length: maxLists }, (_, i) => maxLists - 1 - i);
  }

  /** Resolves when everything is sent; the answers come later. */
  async exchange(
    entries: readonly Exchanged[],
    call: ExchangeCall,
  ): Promise<{ readonly answers: Promise<readonly RemoteKeyStatus[]> }> {
    const list = await this.#listOf(entries);
    const statuses = new Statuses(entries, call.isHeld);
    const requests = list.parts.flatMap((part) => this.#send(list.numbers, part, call, statuses));
    list.uses++;
    const settled = Promise.allSettled(requests).then(() => list.uses--);
    list.answered = Promise.all([list.answered, settled]);
    const answers = allAnswered(requests)
      .then(() => statuses.result())
      .catch((error: TributaryError) => {
        throw refusalOf(error, call.push && statuses.isTaken);
      });
    return { answers };
  }

  forget(): void {
    for (const { numbers } of this.#known.values()) this.#free.push(...numbers);
    this.#known.clear();
  }

  async #listOf(entries: readonly Exchanged[]): Promise<KnownList> {
    let name = '';
    for (const { key, gradient, into, isInPlace } of entries) {
      name += `${keyName(key.key)}\0${gradient?.byteOffset ?? ''} ${into?.byteOffset ?? ''} ${isInPlace}\n`;
    }
    let list = this.#known.get(name);
    if (list === undefined) {
      const parts = this.#partsOf(entries);
      const count = parts.reduce((most, { messages }) => Math.max(most, messages.at(-1)!.part + 1), 0);
      list = { numbers: await this.#take(count), entries, parts, uses: 0, answered: Promise.resolve() };
      try {
        await this.#announce(list);
      } catch (error) {
        // Some cores may have taken it: whoever gets the number announces it to all that it has.
        this.#free.push(...list.numbers);
        throw error;
      }
      this.#known.set(name, list);
    }
    return list;
  }

  /**
   * Free ones, or those of lists which are forgotten from now on, before any core hears of another by
   * such a number.
   */
  async #take(count: number): Promise<readonly number[]> {
    if (count > this.#maxLists) throw tooLong(count * ENTRIES_A_PART, this.#maxLists * ENTRIES_A_PART);
    while (this.#free.length < count) {
      const idle = [...this.#known].find(([, { uses }]) => uses === 0);
      if (idle === undefined) {
        await Promise.race([...this.#known.values()].map(({ answered }) => answered));
        continue;
      }
      const [name, { numbers }] = idle;
      this.#known.delete(name);
      this.#free.push(...numbers);
    }
    return this.#free.splice(this.#free.length - count).reverse();
  }

  #partsOf(entries: readonly Exchanged[]): CorePart[] {
    return this.#lines.flatMap((_, core) => {
      const own = entries.flatMap(({ key, gradient, into }, i) =>
        key.pieces
          .map((piece, number) => ({ ...piece, number }))
          .filter((piece) => piece.core === core)
          .map(({ start, ranges, elements, number }) => {
            const bytesOf = (tensor: Region | undefined): readonly ByteRange[] =>
              tensor === undefined || this.#isShared[core]
                ? NOTHING
                : joined(
                    ranges.map(([from, length]) => ({
                      byteOffset: tensor.byteOffset + 4 * (start + from),
                      byteLength: 4 * length,
                    })),
                  );
            const bytes = { gradient: bytesOf(gradient), into: bytesOf(into), bytes: 4 * elements };
            return { key: i, piece: number, ...bytes };
          }),
      );
      return own.length === 0
        ? []
        : [{ core, messages: messagesOf(own, this.#isShared[core] ? Infinity : MESSAGE_BYTES) }];
    });
  }

  async #announce({ numbers, parts, entries }: KnownList): Promise<void> {
    await allAnswered(
      parts.flatMap(({ core }) =>
        partsOf(this.#entriesOn(core, entries)).map((own, i) =>
          this.#lines[core]!.announce(`list ${numbers[i]}`, { op: 'list', list: numbers[i], entries: own }),
        ),
      ),
    );
  }

  #entriesOn(core: number, entries: readonly Exchanged[]): ListEntry[] {
    const placeOf = (tensor: Region<'float32'> | undefined, { firstElements }: KnownKey) => {
      if (tensor === undefined || !this.#isShared[core]) return undefined;
      const [segment, byteOffset] = this.#memory.placeOf(tensor);
      return [segment, byteOffset + 4 * firstElements[core]!] as const;
    };
    return entries.flatMap(({ key, gradient, into, isInPlace }) =>
      key.pieces
        .filter((piece) => piece.core === core)
        .map((piece): ListEntry => ({
          ...{ piece: piece.number, isInPlace },
          ...{ gradient: placeOf(gradient, key), into: placeOf(into, key) },
        })),
    );
  }

  #send(
    numbers: readonly number[],
    { core, messages }: CorePart,
    call: ExchangeCall,
    statuses: Statuses,
  ): Promise<void>[] {
    const { push, pull, fromHeld, samples, lr } = call;
    return messages.map(async (message) => {
      const { part, first, keys, gradient, into, allInto } = message;
      const skipped =
        call.skipped.length === 0 ? [] : keys.flatMap((key, i) => (call.skipped.includes(key) ? [i] : []));
      const steps = push || fromHeld ? keys.map((key) => call.steps[key]!) : [];
      const reply = await this.#lines[core]!.request(
        {
          op: 'exchange',
          list: numbers[part]!,
          first,
          count: keys.length,
          push,
          pull,
          fromHeld,
          steps,
          samples,
          skipped,
          lr,
        },
        push ? gradient : NOTHING,
        ({ results }) =>
          (results as unknown[]).every(Array.isArray)
            ? allInto
            : into.flatMap((ranges, i) => (Array.isArray((results as unknown[])[i]) ? ranges : NOTHING)),
      );
      statuses.add(reply, message);
    });
  }
}

function partsOf<T>(entries: readonly T[]): readonly (readonly T[])[] {
  const count = Math.ceil(entries.length / ENTRIES_A_PART);
  return Array.from({ length: count }, (_, i) => entries.slice(i * ENTRIES_A_PART, (i + 1) * ENTRIES_A_PART));
}

/** Messages of at least so many bytes, but for the last of each part. */
function messagesOf(all: readonly Entry[], bytes: number): Message[] {
  return partsOf(all).flatMap((entries, part) => {
    const messages: Message[] = [];
    for (let first = 0; first < entries.length;) {
      let [count, size] = [0, 0];
      while (first + count < entries.length && size < bytes) size += entries[first + count++]!.bytes;
      const own = entries.slice(first, first + count);
      messages.push({
        ...{ part, first, keys: own.map(({ key }) => key), pieces: own.map(({ piece }) => piece) },
        into: own.map(({ into }) => into),
        gradient: joined(own.flatMap(({ gradient }) => gradient)),
        allInto: joined(own.flatMap(({ into }) => into)),
      });
      first += count;
    }
    return messages;
  });
}

function tooLong(pieces: number, most: number): UsageError {
  return new UsageError(
    'INVALID_ARGUMENT',
    `a list of keys has about ${pieces} pieces on a core, where ${most} can be exchanged in one call; give fewer keys in a call`,
    { expected: most, actual: pieces },
  );
}

/** Puts the answers for pieces together to those for keys. */
class Statuses {
  readonly #entries: readonly Exchanged[];
  readonly #versions: number[];
  readonly #staleness: number[];
  /** By key and piece. */
  readonly #squares: (number | null)[][] | undefined;
  #error: PackedError | undefined;
  /** Whether a core has done its part. */
  isTaken = false;

  constructor(entries: readonly Exchanged[], isHeld: boolean) {
    this.#entries = entries;
    this.#squares = isHeld ? entries.map(() => []) : undefined;
    this.#versions = entries.map(() => Infinity);
    this.#staleness = entries.map(() => 0);
  }

  add({ results }: Header, { keys, pieces }: Message): void {
    (results as (PackedError | PieceResult | null)[]).forEach((result, i) => {
      const key = keys[i]!;
      if (!isResult(result)) {
        this.#error ??= result ?? undefined;
        return;
      }
      this.isTaken = true;
      this.#versions[key] = Math.min(this.#versions[key]!, result[0]);
      this.#staleness[key] = Math.max(this.#staleness[key]!, result[1]);
      if (this.#squares && result[2] !== undefined) this.#squares[key]![pieces[i]!] = result[2];
    });
  }

  result(): readonly RemoteKeyStatus[] {
    if (this.#error) throw unpack(this.#error);
    return this.#entries.map(({ key }, i) => {
      const version = this.#versions[i]!;
      const squares = this.#squares && { sumOfSquares: sumInOrder(this.#squares[i]!) };
      const staleness = this.#staleness[i]!;
      return { key: key.key, version: version === Infinity ? 0 : version, staleness, ...squares };
    });
  }
}

function isResult(result: PackedError | PieceResult | null): result is PieceResult {
  return Array.isArray(result);
}
