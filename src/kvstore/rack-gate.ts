/**
 * Where the workers of a rack meet around one key, by the rack's server alone: they come in with a few numbers, which the server
 * adds up; the leader acts for all of them; they leave with what came of it. The leader is on the server's host and
 * writes its words, and errors, straight into the server's memory, which nobody else writes between the two meetings.
 *
 * Invariants: what fails on the leader fails on all workers of the rack with the same class, code and message; words that the
 * leader did not write in this very call are never taken for an answer; no wait is longer than the time limit.
 */
import { pack, PeerError, unpack, UsageError } from '../base/index.ts';
import type { PackedError } from '../base/index.ts';
import type { Region } from '../memory/index.ts';
import type { KeyInit } from './kv-store.ts';
import type { RemoteStore } from './remote/remote-store.ts';

/** What a worker comes in with; the leader gets the sum. */
export interface Share {
  /** 0 if its values are left out. */
  readonly samples: number;
  /** 1 if its values are used, else 0. */
  readonly used: number;
}

export interface Passed {
  /** Updates that the key has seen. */
  readonly version: number;
  /** Whether there is another round of the same call. */
  readonly isAgain?: boolean | undefined;
}

export interface GateOptions {
  readonly rack: RemoteStore;
  /** As errors call it: the key, or all keys. */
  readonly title: string;
  /** Of the keys on the rack's server. */
  readonly suffix: string;
  /** This worker's number among those of all racks. */
  readonly worker: number;
  /** Longest wait for the rack, in milliseconds. */
  readonly deadlineMs: number;
  /** Room for two times `GATE_WORDS`. */
  readonly room: Region<'float32'>;
}

export const GATE_WORDS = 16;
/** Room for the text of an error: 8 KB. */
const NOTE_WORDS = 2048;
/** Numbers that a float32 holds exactly are below this. */
const EXACT = 2 ** 24;

/** The words: three that are added up, which the leader then clears, and five that the leader writes. */
const SAMPLES = 0;
const USED = 1;
/** Comes in from the leader as 1: what has become of it tells by what an averaging server has divided. */
const UNIT = 2;
const PASS = 3;
const ERROR_BYTES = 4;
const VERSION_LOW = 5;
const VERSION_HIGH = 6;
const AGAIN = 7;

/** What a gate is made of on the rack's server. */
export function gateInits(suffix: string): KeyInit[] {
  return [
    { key: `gate${suffix}`, value: new Float32Array(GATE_WORDS) },
    { key: `note${suffix}`, value: new Float32Array(NOTE_WORDS) },
  ];
}

export class Gate {
  readonly #options: GateOptions;
  readonly #isLeader: boolean;
  readonly #key: string;
  readonly #note: string;
  readonly #given: Region<'float32'>;
  readonly #heard: Region<'float32'>;
  #passes = 0;

  constructor(options: GateOptions) {
    const { rack, suffix, room } = options;
    this.#options = options;
    this.#isLeader = rack.rank === 0;
    this.#key = `gate${suffix}`;
    this.#note = `note${suffix}`;
    this.#given = room.slice(0, GATE_WORDS);
    this.#heard = this.#isLeader ? serverMemory(rack, this.#key) : room.slice(GATE_WORDS, GATE_WORDS);
  }

  /**
   * One call of the whole rack. `handed` settles when the server has what all workers brought. `act` is what the leader then
   * does for all, undefined on the others.
   */
  async pass(
    share: Share,
    handed: readonly Promise<unknown>[],
    act: ((all: Share) => Promise<Passed | void>) | undefined,
  ): Promise<Passed> {
    this.#passes = (this.#passes + 1) % EXACT;
    this.#given.view.fill(0);
    this.#given.view[SAMPLES] = share.samples;
    this.#given.view[USED] = share.used;
    this.#given.view[UNIT] = Number(this.#isLeader);
    await this.#within(Promise.all([...handed, this.#push()]), 'for the other workers of its rack');
    const failed = act && (await this.#lead(act));
    this.#given.view.fill(0);
    await this.#within(this.#push(), 'for the leader of its rack');
    if (failed) throw failed.error;
    return act ? this.#words() : this.#hear();
  }

  /** Acts, and leaves what came of it in the server's memory; returns the error, if it failed. */
  async #lead(act: (all: Share) => Promise<Passed | void>): Promise<{ readonly error: unknown } | undefined> {
    const words = this.#heard.view;
    const unit = words[UNIT]!;
    const all = { samples: words[SAMPLES]! / unit, used: Math.round(words[USED]! / unit) };
    let failed: { readonly error: unknown } | undefined;
    let passed: Passed = { version: 0 };
    try {
      passed = (await act(all)) ?? passed;
    } catch (error) {
      failed = { error };
    }
    words.fill(0);
    words[PASS] = this.#passes;
    words[ERROR_BYTES] = failed ? this.#write(failed.error) : 0;
    words[VERSION_LOW] = passed.version % EXACT;
    words[VERSION_HIGH] = Math.floor(passed.version / EXACT);
    words[AGAIN] = Number(passed.isAgain ?? false);
    return failed;
  }

  #words(): Passed {
    const words = this.#heard.view;
    return {
      version: words[VERSION_LOW]! + EXACT * words[VERSION_HIGH]!,
      isAgain: words[AGAIN] === 1,
    };
  }

  async #hear(): Promise<Passed> {
    const { title, worker, rack } = this.#options;
    const words = this.#heard.view;
    if (words[PASS] !== this.#passes) {
      throw new PeerError(
        'PEER_LOST',
        `the leader of worker ${worker}'s rack left during call ${this.#passes} of ${title}, expected its answer and found that of call ${words[PASS]}; close the stores of the rack and start it again`,
        { worker, rackWorker: rack.rank, leader: 0, expected: this.#passes, actual: words[PASS] },
      );
    }
    const bytes = words[ERROR_BYTES]!;
    if (bytes > 0) throw unpack(await this.#read(bytes));
    return this.#words();
  }

  /** As bytes: nothing is ever added to the note. */
  #write(error: unknown): number {
    const { view } = serverMemory(this.#options.rack, this.#note);
    const packed = pack(error);
    const whole = textOf(packed);
    const text =
      whole.length <= view.byteLength
        ? whole
        : textOf({
            ...packed,
            ...{ message: packed.message.slice(0, 1024), facts: {}, stack: undefined, cause: undefined },
          });
    new Uint8Array(view.buffer, view.byteOffset, view.byteLength).set(text);
    return text.length;
  }

  async #read(bytes: number): Promise<PackedError> {
    const into = new Float32Array(NOTE_WORDS);
    await this.#within(this.#options.rack.pull({ key: this.#note, into }), 'for the error of its leader');
    return JSON.parse(Buffer.from(into.buffer, 0, bytes).toString()) as PackedError;
  }

  #push(): Promise<unknown> {
    return this.#options.rack.pushpull({ key: this.#key, gradient: this.#given, into: this.#heard });
  }

  /** What comes too late is let go: the store is of no use then. */
  async #within<T>(wait: Promise<T>, forWhom: string): Promise<T> {
    const { deadlineMs, title, worker } = this.#options;
    let timer: NodeJS.Timeout | undefined;
    const late = new Promise<never>((_, reject) => {
      timer = setTimeout(() => {
        const message = `worker ${worker} waited ${deadlineMs / 1000} s ${forWhom} in call ${this.#passes} of ${title}; find out why they do not come, or raise deadlineMs`;
        reject(new PeerError('TIMEOUT', message, { worker, deadlineMs, call: this.#passes }));
      }, deadlineMs);
    });
    try {
      return await Promise.race([wait, late]);
    } finally {
      clearTimeout(timer);
    }
  }
}

/** A value in the memory of the rack's server. */
export function serverMemory(rack: RemoteStore, key: string): Region<'float32'> {
  const value = rack.value(key);
  if (value) return value;
  throw new UsageError(
    'INVALID_ARGUMENT',
    `worker ${rack.rank} of its rack leads it but does not share memory with the one server of the rack; let the first worker of a rack run on the host of its server, with sharedMemory`,
    { rackWorker: rack.rank, key },
  );
}

function textOf(packed: PackedError): Buffer {
  // JSON has no big numbers.
  return Buffer.from(
    JSON.stringify(packed, (_, value: unknown) => (typeof value === 'bigint' ? String(value) : value)),
  );
}
