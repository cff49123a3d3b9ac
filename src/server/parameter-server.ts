/**
 * A parameter server (PHub): core threads that own chunks, one listening socket each, and the services that tenants have
 * been given. This is its main thread: it starts and ends the cores, gives out memory and keeps the list of services; no
 * gradient passes here. Invariants: nothing listens beyond the address that was asked for; when it is closed no thread,
 * socket or segment is left.
 */
import { cpus } from 'node:os';
import { pack, unpack, UsageError } from '../base/index.ts';
import type { TributaryError } from '../base/index.ts';
import { SharedSpace } from '../memory/index.ts';
import type { Segment } from '../memory/index.ts';
import { isNonce, listenWithin, resolveHost, TlsTunnel } from '../sockets/index.ts';
import type { TlsOptions } from '../sockets/index.ts';
import type { Answers, Durability, Question, Service, ToCore, ToOffice } from './cores/office.ts';
import { TenantMemory } from './memory-office.ts';
import { systemServerHost } from './server-host.ts';
import type { ServerHost, ThreadLine } from './server-host.ts';
import { TenantCheckpoints } from './tenant-checkpoints.ts';
import type { ServiceAccess } from './service-access.ts';
import { isNamespace, readSettings } from './wire/messages.ts';
import type { ServiceSettings } from './wire/messages.ts';

export interface ParameterServerOptions {
  /** Threads that own chunks. Default 1. */
  readonly cores?: number | undefined;
  /**
   * Whether each core stays on a processor of its own, which keeps its chunks in that processor's cache and two cores from
   * sharing one. For a server that has the machine to itself. Default false.
   */
  readonly pinned?: boolean | undefined;
  /** The address to listen at. Default 127.0.0.1. */
  readonly address?: string | undefined;
  /** The port of the first core; the others have those that follow. Default: any that the system gives. */
  readonly port?: number | undefined;
  /** Encrypts and authenticates all connections. Default: none. */
  readonly tls?: TlsOptions | undefined;
  /** How long a connection may take to prove itself, in milliseconds. Default 5,000. */
  readonly handshakeTimeoutMs?: number | undefined;
  /** Connections that may be proving themselves at a time on each core. Default 64. */
  readonly maxStrangers?: number | undefined;
  /** Memory of all tenants. Default: a new space. */
  readonly space?: SharedSpace | undefined;
  /** Gets a line of text for each connection that was closed for a fault. Default: none. */
  readonly log?: ((line: string) => void) | undefined;
}

export interface ServiceOptions {
  /** Letters, digits, '.', '_' and '-', up to 64, the first no dot. */
  readonly namespace: string;
  /** 64 hexadecimal digits that workers must know. Default: random. */
  readonly nonce?: string | undefined;
  /** How it is trained. Default: as the first worker says. */
  readonly settings?: ServiceSettings | undefined;
  /** How long a worker whose connection broke is waited for before it is counted out, in milliseconds. Default 5,000. */
  readonly graceMs?: number | undefined;
  /**
   * What becomes of synchronous training without a lost worker: 'release' goes on with the others, 'wait' waits until it
   * has been started again and then goes back to the last checkpoint, so that the result is that of a run without the
   * loss. Default 'release'.
   */
  readonly lostWorkers?: 'release' | 'wait' | undefined;
  /** Folder of its checkpoints and logs, of this server alone. Default: nothing is kept. */
  readonly folder?: string | undefined;
  /**
   * What acknowledged pushes survive, where they are logged (asynchronous training with a folder): 'process', the end of the
   * server's process, however it comes; 'disk', also a power cut, because nothing is acknowledged before it is on the disk.
   * Default 'process'.
   */
  readonly durability?: Durability | undefined;
  /** Bytes that it may take: values, slots, and gradients on their way. Default 4 GiB. */
  readonly maxBytes?: number | undefined;
  /** Chunks that its keys may have on one core. Default 1,000,000. */
  readonly maxChunks?: number | undefined;
}

interface Tenancy {
  readonly service: Service;
  readonly memory: TenantMemory;
  readonly checkpoints: TenantCheckpoints | undefined;
}

interface Core {
  readonly doorbell: number;
  readonly listeningFd: number;
  readonly tunnel: TlsTunnel | undefined;
  readonly listensAt: number;
  /** Undefined until it has been started. */
  thread: ThreadLine<ToOffice, ToCore> | undefined;
  readonly ended: Promise<void>;
  readonly hasEnded: () => void;
}

export class ParameterServer {
  /** Where workers find it. */
  readonly address: string;
  readonly #options: ParameterServerOptions;
  readonly #host: ServerHost;
  readonly #space: SharedSpace;
  readonly #cores: Core[] = [];
  readonly #services = new Map<string, Tenancy>();
  /** Services that have ended, and whose memory cores may still use. */
  readonly #ended = new Set<Tenancy>();
  readonly #beacon: Segment;
  /** Tells workers that it is not the process that they knew. */
  readonly #run: string;
  /** Why a core ended that should not have. */
  failure: TributaryError | undefined;
  #closing = false;

  private constructor(
    options: ParameterServerOptions,
    address: string,
    space: SharedSpace,
    host: ServerHost,
  ) {
    this.#options = options;
    this.#host = host;
    this.#run = host.randomHex(8);
    this.address = address;
    this.#space = space;
    this.#beacon = space.createSegment(`beacon-${host.randomHex(8)}`, 64);
  }

  /** `host`: the machine that it runs on. Default: this one. */
  static async start(
    options: ParameterServerOptions = {},
    host: ServerHost = systemServerHost,
  ): Promise<ParameterServer> {
    const { cores = 1, address = '127.0.0.1', port = 0 } = options;
    checkCount('cores', cores, 1, 256);
    checkCount('port', port, 0, 65535 - cores);
    const name = await resolveHost(address);
    const server = new ParameterServer(options, address, options.space ?? SharedSpace.create(), host);
    try {
      for (let i = 0; i < cores; i++) await server.#listen(name, port === 0 ? 0 : port + i);
      for (let i = 0; i < cores; i++) server.#startCore(i);
      return server;
    } catch (error) {
      await server.close();
      throw error;
    }
  }

  /** The port of the first core, by which workers find the others. */
  get port(): number {
    return this.#cores[0]!.listensAt;
  }

  get cores(): number {
    return this.#cores.length;
  }

  get services(): readonly { readonly namespace: string; readonly bytes: number }[] {
    return [...this.#services.values()].map(({ service, memory }) => ({
      namespace: service.namespace,
      bytes: memory.bytes,
    }));
  }

  /** A namespace of its own for a tenant, and the nonce by which its workers prove that they belong to it. */
  createService(options: ServiceOptions): ServiceAccess {
    const { namespace, nonce = this.#host.randomHex(32) } = options;
    if (!isNamespace(namespace) || this.#services.has(namespace)) {
      const why = isNamespace(namespace) ? 'is taken' : 'is no name';
      throw new UsageError(
        'INVALID_ARGUMENT',
        `namespace '${namespace}' ${why}; give another one of 1 to 64 letters, digits, '.', '_' and '-'`,
        { namespace },
      );
    }
    if (!isNonce(nonce)) {
      throw new UsageError(
        'INVALID_ARGUMENT',
        `the nonce of namespace '${namespace}' is not made of 64 hexadecimal digits; leave it out for a random one`,
        { namespace },
      );
    }
    const { graceMs = 5000, maxBytes = 4 * 2 ** 30, maxChunks = 1_000_000 } = options;
    checkCount('graceMs', graceMs, 0, 2 ** 31);
    checkCount('maxBytes', maxBytes, 1, 2 ** 40);
    checkCount('maxChunks', maxChunks, 1, 2 ** 31);
    const { folder, lostWorkers = 'release', durability = 'process' } = options;
    if (durability !== 'process' && durability !== 'disk') throw unknownDurability(namespace, durability);
    const settings = options.settings && checkedSettings(options.settings);
    const service: Service = {
      ...{ namespace, nonce, settings, graceMs, lostWorkers, maxBytes, maxChunks, logFolder: folder },
      ...{ durability, cores: this.cores },
    };
    const log = this.#options.log ?? (() => undefined);
    const checkpoints =
      folder === undefined
        ? undefined
        : new TenantCheckpoints(this.#host, this.#space, namespace, folder, this.cores, log);
    const memory = new TenantMemory(this.#space, service, this.#host);
    this.#services.set(namespace, { service, memory, checkpoints });
    this.#tell({ service });
    return { namespace, nonce };
  }

  /** Ends a service: its workers are disconnected and its memory is given back. */
  endService(namespace: string): void {
    const known = this.#services.get(namespace);
    if (known === undefined) return;
    this.#services.delete(namespace);
    this.#tell({ endService: namespace });
    // Cores may be in the middle of an update; they have let go once they have heard of it.
    this.#ended.add(known);
    this.#host.clock.after(LETTING_GO_MS, () => void this.#clear(known));
  }

  async close(): Promise<void> {
    if (this.#closing) return;
    this.#closing = true;
    // Until now a server that was forgotten did not keep its process alive.
    for (const { thread } of this.#cores) thread?.ref();
    this.#tell({ close: true });
    await Promise.all(this.#cores.filter(({ thread }) => thread).map(({ ended }) => ended));
    const { libc } = this.#host;
    for (const { thread, doorbell, listeningFd, tunnel } of this.#cores) {
      await thread?.terminate();
      libc.close(doorbell);
      libc.close(listeningFd);
      await tunnel?.close();
    }
    for (const tenancy of [...this.#services.values(), ...this.#ended]) await this.#clear(tenancy);
    this.#beacon.close();
  }

  async #clear(tenancy: Tenancy): Promise<void> {
    this.#ended.delete(tenancy);
    await tenancy.checkpoints?.close();
    tenancy.memory.close();
  }

  async #listen(host: string, port: number): Promise<void> {
    const { tls, handshakeTimeoutMs = 5000, maxStrangers = 64, log = () => undefined } = this.#options;
    const ports = [port, port] as const;
    const limits = { handshakeTimeoutMs, maxPendingHandshakes: maxStrangers, log };
    const tunnel = tls && (await TlsTunnel.open(tls, limits, { host, ports, socketBufferBytes: 0 }));
    void tunnel?.lost.then((error) => this.#fail(error));
    const listening = tunnel?.listening ?? listenWithin(this.#host.libc, host, ports, 0);
    let hasEnded: () => void = () => undefined;
    const ended = new Promise<void>((resolve) => (hasEnded = resolve));
    this.#cores.push({
      ...{ doorbell: this.#host.libc.doorbell(), listeningFd: listening.fd, tunnel },
      ...{ listensAt: listening.port, ended, hasEnded, thread: undefined },
    });
  }

  #startCore(index: number): void {
    const core = this.#cores[index]!;
    const { handshakeTimeoutMs = 5000, maxStrangers = 64, tls } = this.#options;
    const word = Number.parseInt(this.#host.randomHex(4), 16) & 0x7fffffff;
    if (index === 0) this.#beacon.region('int32', 0, 1).view[0] = word;
    const beacon = { segment: this.#beacon.name!, word: this.#beacon.region('int32', 0, 1).view[0]! };
    core.thread = this.#host.startCore(this.#space.memory, {
      ...{ listeningFd: core.listeningFd, doorbell: core.doorbell, handshakeTimeoutMs, maxStrangers },
      ...{ index, isTunnelled: tls !== undefined },
      processor: this.#options.pinned ? index % cpus().length : undefined,
      welcome: { run: this.#run, ports: this.#cores.map(({ listensAt }) => listensAt), beacon },
    });
    core.thread.onMessage((message) => this.#hear(core, message));
  }

  #hear(core: Core, message: ToOffice): void {
    if ('log' in message) return this.#options.log?.(message.log);
    if ('ended' in message) {
      if (message.ended) this.#fail(unpack(message.ended));
      return core.hasEnded();
    }
    const { token, question } = message;
    void this.#answer(question)
      .then((answer): ToCore => ({ token, answer }))
      .catch((error: unknown): ToCore => ({ token, error: pack(error) }))
      .then((reply) => {
        core.thread?.post(reply);
        this.#host.libc.ring(core.doorbell);
      });
  }

  /** What serves workers no more, and cannot be mended here. */
  #fail(error: TributaryError): void {
    this.failure = error;
    this.#options.log?.(`a core failed: ${error.message}`);
  }

  async #answer(question: Question): Promise<Answers[keyof Answers]> {
    const tenant = this.#services.get(question.namespace);
    if (tenant === undefined) {
      throw new UsageError('INVALID_ARGUMENT', 'the service has ended; ask for another one');
    }
    const { checkpoints } = tenant;
    if (question.kind === 'checkpoints') return (await checkpoints?.steps()) ?? [];
    if (question.kind === 'restore') return checkpoints!.restore(question.core, question.step);
    if (question.kind === 'recover') return checkpoints!.recover(question.core);
    if (question.kind === 'checkpoint') return checkpoints!.add(question);
    return tenant.memory.answer(question);
  }

  #tell(message: ToCore): void {
    for (const { thread, doorbell } of this.#cores) {
      thread?.post(message);
      this.#host.libc.ring(doorbell);
    }
  }
}

const LETTING_GO_MS = 1000;

function checkedSettings(settings: ServiceSettings): ServiceSettings {
  try {
    return readSettings(settings);
  } catch (cause) {
    throw new UsageError(
      'INVALID_ARGUMENT',
      `the settings of a service are ${JSON.stringify(settings)}; give workers, consistency, combine and aggregation as the documentation says`,
      { settings },
      cause,
    );
  }
}

function unknownDurability(namespace: string, durability: unknown): UsageError {
  return new UsageError(
    'INVALID_ARGUMENT',
    `the durability of namespace '${namespace}' is ${JSON.stringify(durability)}; give 'process' or 'disk'`,
    { namespace, durability },
  );
}

function checkCount(name: string, value: number, least: number, most: number): void {
  if (Number.isInteger(value) && value >= least && value <= most) return;
  throw new UsageError(
    'INVALID_ARGUMENT',
    `${name} is ${value}; give a whole number from ${least} to ${most}`,
    {
      [name]: value,
    },
  );
}
