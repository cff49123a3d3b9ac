/**
 * What the threads of a server say to each other: cores ask the main thread, the office, for memory
 * that several cores use; the office tells cores of services. Types, and the core's end of the
 * line. Invariant: every question is answered once, with memory or with an error; a core never
 * waits for an answer, it goes on with other workers.
 */
import { asTributaryError, unpack } from '../../base/index.ts';
import type { PackedError, StoreKey, TributaryError } from '../../base/index.ts';
import type { KeyShape, ServiceSettings } from '../wire/messages.ts';
import type { AdministrationAnswer, AdministrationRequest, TenantCensus } from '../wire/administration.ts';
import type { Common, CoreState } from '../durability/index.ts';
import type { KeyPlaces } from './key-places.ts';
import type { CoreSnapshot } from './snapshot.ts';

export type Durability = 'process' | 'disk';

/** A tenant: who knows the nonce may use the namespace. */
export interface Service {
  readonly namespace: string;
  /** Tells it from an earlier service of the same name, which cores may still be letting go of. */
  readonly serial: number;
  readonly nonce: string;
  /** Workers that it is for; undefined: as many as the first one says. */
  readonly workers: number | undefined;
  /** Default: those of the first worker that comes. */
  readonly settings: ServiceSettings | undefined;
  /** How long a worker whose connection broke is waited for, in milliseconds. */
  readonly graceMs: number;
  /** Whether training goes on without it then, or waits until it has been started again. */
  readonly lostWorkers: 'release' | 'wait' | 'rewind';
  /** Where checkpoints and logs of pushes are kept; undefined: nowhere. */
  readonly logFolder: string | undefined;
  /** What acknowledged pushes survive: the end of the process, or a power cut too. */
  readonly durability: Durability;
  /** Cores of the server. */
  readonly cores: number;
  /** Chunks that all keys may have on one core. */
  readonly maxChunks: number;
  /** Connections that it may have to one core. */
  readonly maxConnections: number;
  /**
   * Bytes that it may take: values, slots, gradients on their way, segments of workers, and copies
   * for checkpoints.
   */
  readonly maxBytes: number;
  /**
   * Bytes that it may write to its logs of pushes since the last checkpoint; each core has an equal
   * share.
   */
  readonly maxLogBytes: number;
  /** Where what it takes is counted, for all threads; see `TenantSpace`. */
  readonly account: SpaceRange;
}

/** A range of the process's space, in whatever segment. */
export interface SpaceRange {
  readonly byteOffset: number;
  readonly byteLength: number;
}

/** Who has memory of its own on a server: one process of a worker, as one core knows it. */
export interface Holder {
  readonly core: number;
  readonly worker: number;
  readonly incarnation: string;
}

export type Question = { readonly namespace: string } & (
  | {
      readonly kind: 'keys';
      readonly keys: readonly KeyShape[];
      /** Names of what the update rule keeps for each element. */
      readonly slots: readonly string[];
    }
  /** Memory for the gradients that one worker sends. */
  | ({ readonly kind: 'staging'; readonly keys: readonly StoreKey[] } & Holder)
  /** A segment of a worker on this host. */
  | ({ readonly kind: 'map'; readonly segment: string } & Holder)
  /**
   * A process is gone from a core: what was taken for it is given back when it is gone from all.
   */
  | ({ readonly kind: 'forget' } & Holder)
  /**
   * To be written when all cores have given their parts, unless one has failed; answered when it is
   * on the disk.
   */
  | {
      readonly kind: 'checkpoint';
      readonly core: number;
      readonly step: number;
      readonly part: CorePart | { readonly failure: PackedError };
      /** As workers said; see there. */
      readonly common: Common;
    }
  /** The core gives its part when its earlier ones are written or given up. */
  | { readonly kind: 'await-checkpoint'; readonly core: number; readonly step: number }
  /** The steps of the checkpoints that there are. */
  | { readonly kind: 'checkpoints' }
  | { readonly kind: 'restore'; readonly core: number; readonly step: number }
  /** The core has put back what was restored; later checkpoints go when all cores have. */
  | { readonly kind: 'gone-back'; readonly core: number; readonly step: number }
  /** The newest good checkpoint, for a core that has just been started. */
  | { readonly kind: 'recover'; readonly core: number }
);

/** A core's part of a checkpoint. */
export interface CorePart extends CoreState {
  readonly snapshot: CoreSnapshot;
}

export interface Answers {
  keys: KeyPlaces;
  staging: readonly SpaceRange[];
  map: SpaceRange;
  forget: null;
  /**
   * The oldest log that a restart may need; undefined: all that there are. `kept`: steps of the
   * checkpoints that are on the disk.
   */
  checkpoint: { readonly firstLog: number | undefined; readonly kept: readonly number[] };
  'await-checkpoint': null;
  checkpoints: readonly number[];
  restore: CorePart;
  'gone-back': null;
  /** `problems`: what is wrong with those that are not good. */
  recover: {
    readonly newest: (CorePart & { readonly step: number }) | undefined;
    readonly problems: readonly string[];
  };
}

export type ToOffice =
  /** `serial`: of the service on whose behalf the core asks. */
  | { readonly token: number; readonly serial: number; readonly question: Question }
  /** Of an administrator, whose proof was checked. */
  | { readonly token: number; readonly administration: AdministrationRequest }
  | { readonly census: number; readonly tenants: readonly TenantCensus[] }
  /**
   * The core holds nothing of the service any more: no connection, no copy under way, no place in
   * its memory.
   */
  | { readonly released: number }
  /** `serial`: of the service that it is about; undefined: of none, and of none only. */
  | { readonly log: string; readonly serial?: number }
  | { readonly ended: PackedError | null };

export type ToCore =
  | { readonly token: number; readonly answer: Answers[keyof Answers] | AdministrationAnswer }
  | { readonly token: number; readonly error: PackedError }
  | { readonly service: Service }
  /** By its serial number; answered by `released`. */
  | { readonly endService: number }
  /** Another core of the service gives its part of this checkpoint, or will. */
  | { readonly joinCheckpoint: { readonly serial: number; readonly step: number } }
  /** A number that the core's answer repeats. */
  | { readonly census: number }
  | { readonly close: true };

export interface OfficeNews {
  service(service: Service): void;
  endService(serial: number): void;
  joinCheckpoint(serial: number, step: number): void;
  census(): readonly TenantCensus[];
  close(): void;
  /** An answer came for the service; `take` is called in its turn, and throws nothing. */
  answer(serial: number, take: () => void): void;
}

/** The office as one tenant of a core sees it. */
export interface TenantOffice {
  ask<K extends Question['kind']>(
    question: Extract<Question, { kind: K }>,
    take: (answer: Answers[K]) => void,
    fail: (error: TributaryError) => void,
  ): void;
  log(line: string): void;
}

interface Asked {
  readonly serial: number;
  readonly take: (answer: never) => void;
  readonly fail: (error: TributaryError) => void;
}

/** The core's end of its line to the office. */
export interface OfficePort {
  post(message: ToOffice): void;
  /** The next message that has come; undefined: none. */
  take(): ToCore | undefined;
}

/** In the place of a serial number. */
const NO_SERVICE = -1;

export class Office {
  readonly #port: OfficePort;
  readonly #open = new Map<number, Asked>();
  #next = 0;

  constructor(port: OfficePort) {
    this.#port = port;
  }

  /** For the service with this serial number. */
  of(serial: number): TenantOffice {
    return {
      ask: (question, take, fail) => {
        const token = this.#next++;
        this.#open.set(token, { serial, take, fail });
        this.#post({ token, serial, question });
      },
      log: (line) => this.#post({ log: line, serial }),
    };
  }

  /** On behalf of an administrator. */
  administrate(
    administration: AdministrationRequest,
    take: (answer: AdministrationAnswer) => void,
    fail: (error: TributaryError) => void,
  ): void {
    const token = this.#next++;
    this.#open.set(token, { serial: NO_SERVICE, take, fail });
    this.#post({ token, administration });
  }

  /** The last word of a service: answers that still come for it reach nobody. */
  released(serial: number): void {
    for (const [token, asked] of this.#open) if (asked.serial === serial) this.#open.delete(token);
    this.#post({ released: serial });
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
      try {
        this.#take(message, news);
      } catch (error) {
        // The bell does not ring again for those that follow.
        this.#failed(error);
      }
    }
  }

  #take(message: ToCore, news: OfficeNews): void {
    if ('service' in message) return news.service(message.service);
    if ('endService' in message) return news.endService(message.endService);
    if ('joinCheckpoint' in message) {
      const { serial, step } = message.joinCheckpoint;
      return news.joinCheckpoint(serial, step);
    }
    if ('census' in message) return this.#post({ census: message.census, tenants: news.census() });
    if ('close' in message) return news.close();
    const asked = this.#open.get(message.token);
    if (asked === undefined) return;
    this.#open.delete(message.token);
    news.answer(asked.serial, () => {
      try {
        if ('error' in message) asked.fail(unpack(message.error));
        else this.#hand(message.answer, asked);
      } catch (error) {
        this.#failed(error);
      }
    });
  }

  #failed(error: unknown): void {
    this.log(`a core failed and goes on: ${String((error as Error).stack ?? error)}`);
  }

  /**
   * What goes wrong with an answer is the end of what asked for it, and must not be the end of
   * anything else.
   */
  #hand(answer: Answers[keyof Answers] | AdministrationAnswer, { take, fail }: Asked): void {
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
