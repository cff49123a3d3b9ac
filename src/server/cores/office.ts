/**
 * What the threads of a server say to each other: cores ask the main thread, the office, for memory that several cores
 * use; the office tells cores of services. Types, and the core's end of the line. Invariant: every question is answered
 * once, with memory or with an error; a core never waits for an answer, it goes on with other workers.
 */
import { asTributaryError, unpack } from '../../base/index.ts';
import type { PackedError, StoreKey, TributaryError } from '../../base/index.ts';
import type { KeyShape, ServiceSettings } from '../wire/messages.ts';
import type { CoreState } from '../durability/index.ts';
import type { CoreSnapshot } from './snapshot.ts';

export type Durability = 'process' | 'disk';

/** A tenant: who knows the nonce may use the namespace. */
export interface Service {
  readonly namespace: string;
  readonly nonce: string;
  /** Default: those of the first worker that comes. */
  readonly settings: ServiceSettings | undefined;
  /** How long a worker whose connection broke is waited for, in milliseconds. */
  readonly graceMs: number;
  /** Whether training goes on without it then, or waits until it has been started again. */
  readonly lostWorkers: 'release' | 'wait';
  /** Where checkpoints and logs of pushes are kept; undefined: nowhere. */
  readonly logFolder: string | undefined;
  /** What acknowledged pushes survive: the end of the process, or a power cut too. */
  readonly durability: Durability;
  /** Cores of the server. */
  readonly cores: number;
  /** Chunks that all keys may have on one core. */
  readonly maxChunks: number;
  /** Bytes that it may take: values, slots, and gradients on their way. */
  readonly maxBytes: number;
}

/** A range of the process's space, in whatever segment. */
export interface SpaceRange {
  readonly byteOffset: number;
  readonly byteLength: number;
}

/** Where a key lies, for all cores. */
export interface KeyMemory {
  readonly key: StoreKey;
  readonly value: SpaceRange;
  readonly slots: Readonly<Record<string, SpaceRange>>;
  /** The value as workers on this host find it. */
  readonly segment: string;
  readonly offsetInSegment: number;
}

export type Question = { readonly namespace: string } & (
  | {
      readonly kind: 'keys';
      readonly keys: readonly KeyShape[];
      /** Names of what the update rule keeps for each element. */
      readonly slots: readonly string[];
    }
  /** Memory for the gradients that one worker sends. */
  | {
      readonly kind: 'staging';
      readonly core: number;
      readonly worker: number;
      readonly keys: readonly StoreKey[];
    }
  /** A segment of a worker on this host. */
  | {
      readonly kind: 'map';
      readonly core: number;
      readonly worker: number;
      readonly segment: string;
    }
  /** A worker is gone from a core: what was taken for it is given back when it is gone from all. */
  | { readonly kind: 'forget'; readonly core: number; readonly worker: number }
  /** To be written when all cores have given their parts, unless one has failed; answered when it is on the disk. */
  | {
      readonly kind: 'checkpoint';
      readonly core: number;
      readonly step: number;
      readonly part: CorePart | { readonly failure: PackedError };
    }
  /** The steps of the checkpoints that there are. */
  | { readonly kind: 'checkpoints' }
  | { readonly kind: 'restore'; readonly core: number; readonly step: number }
  /** The newest good checkpoint, for a core that has just been started. */
  | { readonly kind: 'recover'; readonly core: number }
);

/** A core's part of a checkpoint. */
export interface CorePart extends CoreState {
  readonly snapshot: CoreSnapshot;
}

export interface Answers {
  keys: readonly KeyMemory[];
  staging: readonly SpaceRange[];
  map: SpaceRange;
  forget: null;
  /** The oldest log that a restart may need; undefined: all that there are. */
  checkpoint: { readonly firstLog: number | undefined };
  checkpoints: readonly number[];
  restore: CorePart;
  /** `problems`: what is wrong with those that are not good. */
  recover: {
    readonly newest: (CorePart & { readonly step: number }) | undefined;
    readonly problems: readonly string[];
  };
}

export type ToOffice =
  | { readonly token: number; readonly question: Question }
  | { readonly log: string }
  | { readonly ended: PackedError | null };

export type ToCore =
  | { readonly token: number; readonly answer: Answers[keyof Answers] }
  | { readonly token: number; readonly error: PackedError }
  | { readonly service: Service }
  | { readonly endService: string }
  | { readonly close: true };

export interface OfficeNews {
  service(service: Service): void;
  endService(namespace: string): void;
  close(): void;
}

/** The core's end of its line to the office. */
export interface OfficePort {
  post(message: ToOffice): void;
  /** The next message that has come; undefined: none. */
  take(): ToCore | undefined;
}

interface Asked {
  readonly take: (answer: never) => void;
  readonly fail: (error: TributaryError) => void;
}

export class Office {
  readonly #port: OfficePort;
  readonly #open = new Map<number, Asked>();
  #next = 0;

  constructor(port: OfficePort) {
    this.#port = port;
  }

  ask<K extends Question['kind']>(
    question: Extract<Question, { kind: K }>,
    take: (answer: Answers[K]) => void,
    fail: (error: TributaryError) => void,
  ): void {
    const token = this.#next++;
    this.#open.set(token, { take, fail });
    this.#post({ token, question });
  }

  log(line: string): void {
    this.#post({ log: line });
  }

  /** The last word. */
  ended(error: PackedError | null): void {
    this.#post({ ended: error });
  }

  /** Takes what has come; the doorbell told so. */
  listen(news: OfficeNews): void {
    for (let message = this.#port.take(); message; message = this.#port.take()) {
      if ('service' in message) news.service(message.service);
      else if ('endService' in message) news.endService(message.endService);
      else if ('close' in message) news.close();
      else {
        const asked = this.#open.get(message.token)!;
        this.#open.delete(message.token);
        if ('error' in message) asked.fail(unpack(message.error));
        else this.#hand(message.answer, asked);
      }
    }
  }

  /** What goes wrong with an answer is the end of what asked for it, and must not be the end of anything else. */
  #hand(answer: Answers[keyof Answers], { take, fail }: Asked): void {
    try {
      take(answer as never);
    } catch (error) {
      fail(asTributaryError(error));
    }
  }

  #post(message: ToOffice): void {
    this.#port.post(message);
  }
}
