/**
 * What administrators may do with a server over the network: create services, end them, list them
 * (PHub's connection manager, section 3.1). It knows no sockets: whoever asks here has proved
 * himself. Invariants: what was answered is kept across the end of the process, where there is a
 * folder; requests that change something are carried out one after the other; a request that is
 * repeated changes nothing and is answered the same.
 */
import { join } from 'node:path';
import { asTributaryError, PeerError, UsageError } from '../../base/index.ts';
import { deriveNonce, keyOfSecret } from '../../sockets/index.ts';
import type { LockableFiles } from '../../memory/index.ts';
import type { Service } from '../cores/office.ts';
import { accessByAdministrator, administratorKeyOf } from '../service-access.ts';
import { checkedServiceOptions } from '../service-options.ts';
import type { CheckedOptions, ServiceOptions } from '../service-options.ts';
import { MAX_SERVICES } from '../wire/administration.ts';
import type {
  AdministrationAnswer,
  AdministrationRequest,
  CreatedService,
  EndedService,
  ListedService,
  RequestedService,
  TenantCensus,
} from '../wire/administration.ts';
import { KeptServices } from './kept-services.ts';

export interface AdministrationOptions {
  /** What administrators must know: at least 16 random bytes, or 32 hexadecimal digits of them. */
  readonly secret: string | Uint8Array;
  /**
   * Where the services that they create are kept, in it a folder for the checkpoints of each.
   * Default: nothing is kept, and these services end with the server.
   */
  readonly folder?: string | undefined;
}

/** The server, as far as it is administrated. */
export interface AdministeredServer {
  readonly capacityBytes: number;
  /** Nothing is created or ended any more. */
  readonly isClosing: boolean;
  offered(): readonly { readonly service: Service; readonly bytes: number }[];
  create(options: ServiceOptions): void;
  /** Resolves when the memory of the service has been given back. */
  end(namespace: string): Promise<void>;
  /** What cores know of their tenants; several entries for each. */
  census(): Promise<readonly TenantCensus[]>;
  log(line: string): void;
}

export class Administration {
  /** What administrators prove that they know. */
  readonly key: string;
  readonly #server: AdministeredServer;
  readonly #options: AdministrationOptions;
  readonly #kept: KeptServices | undefined;
  readonly #created = new Map<string, RequestedService>();
  /** The last request that changes something. */
  #last: Promise<unknown> = Promise.resolve();

  private constructor(
    server: AdministeredServer,
    options: AdministrationOptions,
    kept: KeptServices | undefined,
  ) {
    this.#server = server;
    this.#options = options;
    this.#kept = kept;
    this.key = administratorKeyOf(options.secret);
  }

  static open(
    server: AdministeredServer,
    options: AdministrationOptions,
    files: LockableFiles,
  ): Administration {
    const { secret, folder } = options;
    // Before a folder is made.
    keyOfSecret(secret);
    const mark = deriveNonce(secret, 'services that are kept');
    return new Administration(server, options, folder ? KeptServices.open(files, folder, mark) : undefined);
  }

  /** Offers what was created before the server was started again. */
  restore(): void {
    for (const service of this.#kept?.services ?? []) {
      try {
        this.#offer(service);
      } catch (cause) {
        const { code, message } = asTributaryError(cause);
        throw new UsageError(
          code,
          `Service '${service.namespace}' of ${this.#kept!.path} cannot be offered again: ${message}`,
          { namespace: service.namespace, path: this.#kept!.path },
          cause,
        );
      }
    }
  }

  answer(request: AdministrationRequest): Promise<AdministrationAnswer> {
    if (request.op === 'list') return this.#list();
    const act = (): Promise<AdministrationAnswer> => {
      if (this.#server.isClosing) throw isClosing();
      return request.op === 'create' ? this.#create(request) : this.#end(request.namespace);
    };
    const answer = this.#last.then(act);
    this.#last = answer.catch(() => undefined);
    return answer;
  }

  /** When the request is done that is under way; those behind it are refused. */
  async close(): Promise<void> {
    await this.#last;
    this.#kept?.close();
  }

  async #create({
    service,
    isTrial,
  }: Extract<AdministrationRequest, { op: 'create' }>): Promise<CreatedService> {
    const { namespace, salt } = service;
    const folder = this.#folderOf(namespace);
    const known = this.#created.get(namespace);
    if (known) {
      this.#checkSame(known, service);
      return { isNew: false, salt: known.salt, folder };
    }
    if (this.#server.offered().some((one) => one.service.namespace === namespace))
      throw givenAtStart(namespace);
    this.#checkPossible(service);
    if (isTrial) return { isNew: true, salt, folder };
    this.#offer(service);
    try {
      this.#kept?.write([...this.#created.values()]);
    } catch (error) {
      this.#created.delete(namespace);
      await this.#server.end(namespace);
      throw error;
    }
    this.#server.log(`service '${namespace}' was created over the network`);
    return { isNew: true, salt, folder };
  }

  async #end(namespace: string): Promise<EndedService> {
    const known = this.#created.get(namespace);
    const folder = this.#folderOf(namespace);
    if (known === undefined) {
      if (this.#server.offered().some(({ service }) => service.namespace === namespace))
        throw notCreated(namespace);
      return { wasThere: false, folder };
    }
    this.#kept?.write([...this.#created.values()].filter((one) => one !== known));
    this.#created.delete(namespace);
    await this.#server.end(namespace);
    this.#server.log(`service '${namespace}' was ended over the network`);
    return { wasThere: true, folder };
  }

  async #list(): Promise<{ readonly services: readonly ListedService[] }> {
    const census = await this.#server.census();
    const services = this.#server.offered().map(({ service, bytes }): ListedService => {
      const { namespace, serial, maxBytes } = service;
      const parts = census.filter((one) => one.serial === serial);
      const most = (count: (one: TenantCensus) => number) => Math.max(0, ...parts.map(count));
      return {
        ...{ namespace, isCreated: this.#created.has(namespace), bytes, maxBytes },
        workers: parts.find(({ workers }) => workers !== null)?.workers ?? service.workers ?? null,
        mode: parts.find(({ mode }) => mode !== null)?.mode ?? null,
        connected: most((one) => one.connected),
        steps: most((one) => one.steps),
      };
    });
    return { services };
  }

  #offer(service: RequestedService): void {
    const { salt, ...options } = service;
    const { namespace, nonce } = accessByAdministrator(this.#options.secret, service.namespace, salt);
    this.#server.create({ ...options, nonce, folder: this.#folderOf(namespace) ?? undefined });
    this.#created.set(namespace, service);
  }

  #folderOf(namespace: string): string | null {
    const { folder } = this.#options;
    return folder === undefined ? null : join(folder, namespace);
  }

  #checked(service: RequestedService): CheckedOptions {
    return checkedServiceOptions({ ...service, nonce: this.key }, this.#server.capacityBytes);
  }

  #checkSame(known: RequestedService, asked: RequestedService): void {
    const [expected, actual] = [this.#checked(known), this.#checked(asked)];
    const names = Object.keys(expected) as (keyof CheckedOptions)[];
    const differing = names.filter((name) => expected[name] !== actual[name]);
    if (differing.length === 0) return;
    const { namespace } = known;
    const each = differing.map((name) => `${name} ${textOf(expected[name])}, not ${textOf(actual[name])}`);
    throw new UsageError(
      'SERVICE_EXISTS',
      `service '${namespace}' is there with ${each.join(' and ')}; give the options that it has, another name, or end it first`,
      { namespace, differing },
    );
  }

  /** What the server refuses after it was created, or never could keep. */
  #checkPossible(service: RequestedService): void {
    const { namespace, lostWorkers, durability, maxLogBytes } = service;
    this.#checked(service);
    if (this.#server.offered().length >= MAX_SERVICES) {
      throw new UsageError(
        'INVALID_ARGUMENT',
        `the server has ${MAX_SERVICES} services, as many as it may; end some`,
        { expected: MAX_SERVICES },
      );
    }
    if (this.#options.folder !== undefined) return;
    const name =
      lostWorkers === 'wait'
        ? '--lost-workers wait'
        : durability !== undefined
          ? '--durability'
          : maxLogBytes !== undefined
            ? '--max-log-bytes'
            : undefined;
    if (name === undefined) return;
    throw new UsageError(
      'INVALID_ARGUMENT',
      `service '${namespace}' asks for ${name}, and the server keeps nothing; start it with --folder, or leave that out`,
      { namespace, option: name },
    );
  }
}

function isClosing(): PeerError {
  return new PeerError('REFUSED', 'the server is being stopped; repeat the command when it runs again');
}

function givenAtStart(namespace: string): UsageError {
  return new UsageError(
    'SERVICE_EXISTS',
    `service '${namespace}' was given by --service when the server was started, with a nonce of its own; use that, or give another name`,
    { namespace },
  );
}

function notCreated(namespace: string): UsageError {
  return new UsageError(
    'SERVICE_EXISTS',
    `service '${namespace}' was given by --service when the server was started, which would offer it again; start the server without it`,
    { namespace },
  );
}

function textOf(value: unknown): string {
  return value === undefined ? 'as the first worker says' : JSON.stringify(value);
}
