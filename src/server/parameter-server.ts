/**
 * A parameter server (PHub): core threads that own chunks, one listening socket each, and the services that tenants
 * have been given. This is its main thread: it starts and ends the cores, gives out memory and keeps the list of
 * services; no gradient passes here. Invariants: nothing listens beyond the address that was asked for; when it is
 * closed no thread, socket or segment is left.
 */
import { InternalError, pack, printable, unpack, UsageError } from '../base/index.ts';
import type { TributaryError } from '../base/index.ts';
import { loadOwnRules } from '../kernels/index.ts';
import { SharedSpace } from '../memory/index.ts';
import type { Segment } from '../memory/index.ts';
import { FaultLog, listenWithin, resolveHost, TlsTunnel } from '../sockets/index.ts';
import type { TlsOptions } from '../sockets/index.ts';
import { Administration } from './administration/administration.ts';
import type { AdministeredServer, AdministrationOptions } from './administration/administration.ts';
import { MAX_CONNECTIONS } from './cores/connection-table.ts';
import type { Answers, CorePart, Question, Service, ToCore, ToOffice } from './cores/office.ts';
import { checkListen } from './listen-address.ts';
import type { ListenAddress } from './listen-address.ts';
import { TenantMemory } from './memory-office.ts';
import { processorsFor } from './processors.ts';
import { systemServerHost } from './server-host.ts';
import type { ServerHost, ThreadLine } from './server-host.ts';
import { TenantCheckpoints } from './tenant-checkpoints.ts';
import type { ServiceAccess } from './service-access.ts';
import { checkCount, checkedServiceOptions } from './service-options.ts';
import type { ServiceOptions } from './service-options.ts';
import { ACCOUNT_BYTES, TenantSpace } from './tenant-space.ts';
import type { TenantCensus } from './wire/administration.ts';

export interface ParameterServerOptions {
  /** Threads that own chunks. Default 1. */
  readonly cores?: number | undefined;
  /**
   * The processor that each core stays on, which keeps its chunks in that processor's cache and two
   * cores from sharing one; true: any that this process may use. For a server that has these
   * processors to itself. Default: wherever the system puts them.
   */
  readonly pinned?: boolean | readonly number[] | undefined;
  /** The address to listen at. Default 127.0.0.1. */
  readonly address?: string | undefined;
  /** The port of the first core; the others have those that follow. Default: any that the system gives. */
  readonly port?: number | undefined;
  /**
   * Where to listen instead, each core at all of these, as at several network interfaces between
   * which workers balance their connections. Default: `address` and `port`.
   */
  readonly listen?: readonly ListenAddress[] | undefined;
  /** Encrypts and authenticates all connections. Default: none. */
  readonly tls?: TlsOptions | undefined;
  /** How long a connection may take to prove itself, in milliseconds. Default 5,000. */
  readonly handshakeTimeoutMs?: number | undefined;
  /**
   * How long a worker may send nothing in the middle of a message before its connection is closed, in milliseconds;
   * it then connects again. Workers that compute for long between two turns of their event loop need as much. Default
   * 60,000.
   */
  readonly stallTimeoutMs?: number | undefined;
  /**
   * Connections that may be proving themselves at a time on each core; one more ends the oldest of the address with
   * the most. Default 64.
   */
  readonly maxStrangers?: number | undefined;
  /** Who may create and end services over the network. Default: nobody. */
  readonly administration?: AdministrationOptions | undefined;
  /**
   * The path, absolute, of a module with update rules, which tenants may name. It is
   * loaded by every core. Default: only the optimizers there are.
   */
  readonly rules?: string | undefined;
  /** Memory of all tenants. Default: a new space. */
  readonly space?: SharedSpace | undefined;
  /** Gets a line of text for each connection that was closed for a fault. Default: none. */
  readonly log?: ((line: string) => void) | undefined;
}

/** As many workers can be lost at once and each is named. */
const TENANT_LINES_A_MINUTE = 100;
const MINUTE_MS = 60_000;

interface Tenancy {
  readonly service: Service;
  readonly space: TenantSpace;
  /** Where it is counted what it takes. */
  readonly account: Segment;
  readonly memory: TenantMemory;
  readonly checkpoints: TenantCheckpoints | undefined;
  /** Cores that may use its memory: all at first; fewer once it has ended. */
  readonly holders: Set<Core>;
  /** Called when it has ended and its memory has been given back. */
  readonly whenCleared: (() => void)[];
}

/** Where connections come in. */
interface Door {
  readonly port: number;
  /** Undefined once it is closed. */
  fd: number | undefined;
  readonly tunnel: TlsTunnel | undefined;
}

interface Core {
  readonly doorbell: number;
  /** One for each address. */
  readonly doors: readonly Door[];
  /** Its open connections, so that they can be closed if it dies. */
  readonly descriptors: Segment;
  /** Undefined until it has been started. */
  thread: ThreadLine<ToOffice, ToCore> | undefined;
  /** It has given everything back, or is dead. */
  readonly ended: Promise<void>;
  readonly hasEnded: () => void;
  /** Who waits for what it knows of its tenants, by number. */
  readonly censuses: Map<number, (tenants: Census) => void>;
}

type Census = readonly TenantCensus[];

export class ParameterServer {
  /** Where workers find it. */
  readonly address: string;
  readonly #options: ParameterServerOptions;
  readonly #host: ServerHost;
  readonly #space: SharedSpace;
  readonly #cores: Core[] = [];
  readonly #services = new Map<string, Tenancy>();
  /** By serial number, services that have ended and whose memory cores may still use. */
  readonly #ending = new Map<number, Tenancy>();
  /** What is being given back. */
  readonly #clearing = new Set<Promise<void>>();
  readonly #tenantLines = new FaultLog((line) => this.#log(line), {
    linesAMinute: TENANT_LINES_A_MINUTE,
    leftOut: (lines, namespace) =>
      `left out ${lines} lines about service '${namespace}' within a minute; see what its workers do, or end it`,
  });
  /** Calls off the look at what was left out. */
  #tenantLook: (() => void) | undefined;
  #serials = 0;
  #administration: Administration | undefined;
  #censuses = 0;
  readonly #processors: readonly number[] | undefined;
  readonly #beacon: Segment;
  /** Tells workers that it is not the process that they knew. */
  readonly #run: string;
  /** Why it serves nobody any more: a core ended that should not have. */
  failure: TributaryError | undefined;
  #closing = false;
  #closed: Promise<void> | undefined;

  private constructor(
    options: ParameterServerOptions,
    address: string,
    space: SharedSpace,
    host: ServerHost,
  ) {
    this.#options = options;
    this.#processors = processorsFor(options.pinned, options.cores ?? 1);
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
    const { cores = 1, listen = [{ address: options.address ?? '127.0.0.1', port: options.port ?? 0 }] } =
      options;
    checkCount('cores', cores, 1, 256);
    checkListen(listen, cores);
    for (const { port } of listen) checkCount('port', port, 0, 65535 - cores);
    // What cannot be loaded is not to be found out by a core.
    if (options.rules !== undefined) await loadOwnRules(options.rules);
    const names = await Promise.all(listen.map(({ address }) => resolveHost(address)));
    const server = new ParameterServer(
      options,
      listen[0]!.address,
      options.space ?? SharedSpace.create(),
      host,
    );
    const { administration } = options;
    try {
      if (administration)
        server.#administration = Administration.open(server.#administered(), administration, host.files);
      for (let i = 0; i < cores; i++)
        await server.#listen(listen.map(({ port }, at) => ({ host: names[at]!, port: port && port + i })));
      for (let i = 0; i < cores; i++) server.#startCore(i);
      // Before anybody is heard.
      server.#administration?.restore();
      return server;
    } catch (error) {
      await server.close();
      throw error;
    }
  }

  /** The port of the first core, by which workers find the others. */
  get port(): number {
    return this.#cores[0]!.doors[0]!.port;
  }

  /** All addresses by which workers find it, with the port of the first core. */
  get listening(): readonly ListenAddress[] {
    const { listen = [{ address: this.address }] } = this.#options;
    return listen.map(({ address }, i) => ({ address, port: this.#cores[0]!.doors[i]!.port }));
  }

  /** Of all cores, at each of these addresses. */
  get ports(): readonly (readonly number[])[] {
    return this.listening.map((_, i) => this.#cores.map(({ doors }) => doors[i]!.port));
  }

  /** Bytes that all tenants can take together. */
  get capacityBytes(): number {
    return this.#space.capacityBytes;
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
    if (this.failure) throw this.failure;
    if (this.#closing) {
      throw new UsageError('INVALID_ARGUMENT', 'the server is closed; start another one', {});
    }
    const { namespace, nonce = this.#host.randomHex(32), folder } = options;
    if (this.#services.has(namespace)) {
      throw new UsageError('INVALID_ARGUMENT', `namespace '${namespace}' is taken; give another one`, {
        namespace,
      });
    }
    const checked = checkedServiceOptions({ ...options, nonce }, this.capacityBytes);
    const account = this.#space.allocate(ACCOUNT_BYTES);
    const service: Service = {
      ...checked,
      ...{ namespace, nonce, logFolder: folder, cores: this.cores },
      serial: this.#serials++,
      account: { byteOffset: account.byteOffset, byteLength: account.byteLength },
    };
    const space = new TenantSpace(this.#space, service);
    const log = (line: string) => this.#logOf(service.serial, line);
    const checkpoints =
      folder === undefined
        ? undefined
        : new TenantCheckpoints(this.#host, space, {
            ...{ namespace, folder, cores: this.cores, log },
            onBegun: (step) => this.#tell({ joinCheckpoint: { serial: service.serial, step } }),
          });
    const memory = new TenantMemory(space, service, this.#host);
    const holders = new Set(this.#cores);
    const tenancy = { service, space, account, memory, checkpoints, holders, whenCleared: [] };
    this.#services.set(namespace, tenancy);
    this.#tell({ service });
    return { namespace, nonce };
  }

  /** Ends a service: its workers are disconnected and, when no core uses it any more, its memory is given back. */
  endService(namespace: string): void {
    void this.#endService(namespace);
  }

  async #endService(namespace: string): Promise<void> {
    const known = this.#services.get(namespace);
    if (known === undefined || this.#closing) return;
    const cleared = new Promise<void>((resolve) => known.whenCleared.push(resolve));
    const { serial } = known.service;
    this.#services.delete(namespace);
    this.#ending.set(serial, known);
    for (const core of this.#cores) if (core.thread === undefined) this.#letGo(core, serial);
    this.#tell({ endService: serial });
    await cleared;
  }

  #administered(): AdministeredServer {
    const isClosing = () => this.#closing;
    return {
      get isClosing() {
        return isClosing();
      },
      capacityBytes: this.capacityBytes,
      offered: () =>
        [...this.#services.values()].map(({ service, memory }) => ({ service, bytes: memory.bytes })),
      create: (options) => void this.createService(options),
      end: (namespace) => this.#endService(namespace),
      census: () => this.#census(),
      log: (line) => this.#log(line),
    };
  }

  async #census(): Promise<readonly TenantCensus[]> {
    const census = this.#censuses++;
    const heard = this.#cores
      .filter(({ thread }) => thread)
      .map(({ censuses }) => new Promise<Census>((take) => censuses.set(census, take)));
    this.#tell({ census });
    return (await Promise.all(heard)).flat();
  }

  /** The core uses the memory of the ended service no more. The last one to say so gives it back. */
  #letGo(core: Core, serial: number): void {
    const tenancy = this.#ending.get(serial);
    if (!tenancy?.holders.delete(core) || tenancy.holders.size > 0) return;
    const clearing = this.#clear(tenancy).finally(() => this.#clearing.delete(clearing));
    this.#clearing.add(clearing);
  }

  /** However often it is called: done when everything is given back. */
  close(): Promise<void> {
    return (this.#closed ??= this.#close());
  }

  async #close(): Promise<void> {
    this.#closing = true;
    this.#tenantLook?.();
    this.#tenantLines.look(Infinity);
    // Until now a server that was forgotten did not keep its process alive.
    for (const { thread } of this.#cores) thread?.ref();
    this.#tell({ close: true });
    await Promise.all(this.#cores.filter(({ thread }) => thread).map(({ ended }) => ended));
    for (const core of this.#cores) {
      await core.thread?.terminate();
      core.thread = undefined;
      this.#closeSockets(core);
      this.#host.libc.close(core.doorbell);
      core.descriptors.close();
      for (const { tunnel } of core.doors) await tunnel?.close();
    }
    for (const tenancy of [...this.#services.values(), ...this.#ending.values()]) await this.#clear(tenancy);
    await Promise.all(this.#clearing);
    await this.#administration?.close();
    this.#beacon.close();
  }

  /** Never fails: whoever ended the service has nobody left to tell but the log. */
  async #clear({ service, account, memory, checkpoints, whenCleared }: Tenancy): Promise<void> {
    this.#ending.delete(service.serial);
    try {
      await checkpoints?.close();
      memory.close();
      account.close();
    } catch (error) {
      this.#log(`service '${service.namespace}' has ended, but not cleanly: ${textOf(error)}`);
    }
    for (const resolve of whenCleared) resolve();
  }

  async #listen(addresses: readonly { readonly host: string; readonly port: number }[]): Promise<void> {
    let hasEnded: () => void = () => undefined;
    const ended = new Promise<void>((resolve) => (hasEnded = resolve));
    const doors: Door[] = [];
    // At once, so that `close` finds what has been opened when an address cannot be used.
    this.#cores.push({
      ...{ doorbell: this.#host.libc.doorbell(), doors, ended, hasEnded, thread: undefined },
      descriptors: this.#space.allocate(4 * MAX_CONNECTIONS),
      censuses: new Map(),
    });
    for (const { host, port } of addresses) doors.push(await this.#open(host, port));
  }

  async #open(host: string, port: number): Promise<Door> {
    const { tls, handshakeTimeoutMs = 5000, maxStrangers = 64, log = () => undefined } = this.#options;
    const ports = [port, port] as const;
    const limits = { handshakeTimeoutMs, maxPendingHandshakes: maxStrangers, log };
    const tunnel = tls && (await TlsTunnel.open(tls, limits, { host, ports, socketBufferBytes: 0 }));
    void tunnel?.lost.then((error) => this.#fail(error));
    return { tunnel, ...(tunnel?.listening ?? listenWithin(this.#host.libc, host, ports, 0)) };
  }

  #startCore(index: number): void {
    const core = this.#cores[index]!;
    const { handshakeTimeoutMs = 5000, stallTimeoutMs = 60_000, maxStrangers = 64, tls } = this.#options;
    const word = Number.parseInt(this.#host.randomHex(4), 16) & 0x7fffffff;
    if (index === 0) this.#beacon.region('int32', 0, 1).view[0] = word;
    const beacon = { segment: this.#beacon.name!, word: this.#beacon.region('int32', 0, 1).view[0]! };
    const options = {
      ...{ doorbell: core.doorbell, handshakeTimeoutMs, maxStrangers },
      listening: core.doors.map(({ fd }, i) => ({ fd: fd!, ports: this.ports[i]! })),
      ...{ index, stallTimeoutMs, isTunnelled: tls !== undefined },
      administratorKey: this.#administration?.key,
      descriptors: { byteOffset: core.descriptors.byteOffset, byteLength: core.descriptors.byteLength },
      processor: this.#processors?.[index],
      welcome: { run: this.#run, beacon },
    };
    core.thread = this.#host.startCore(this.#space.memory, options, this.#options.rules);
    core.thread.onMessage((message) => this.#hear(core, message));
    core.thread.onEnd((error) => this.#lost(core, error));
  }

  #hear(core: Core, message: ToOffice): void {
    if ('log' in message) return this.#logOf(message.serial, message.log);
    if ('released' in message) return this.#letGo(core, message.released);
    if ('census' in message) return this.#heardCensus(core, message.census, message.tenants);
    if ('administration' in message) return void this.#administrate(core, message);
    if ('ended' in message) {
      if (message.ended) this.#fail(unpack(message.ended));
      return core.hasEnded();
    }
    void this.#reply(core, message);
  }

  async #reply(core: Core, { token, serial, question }: Asked): Promise<void> {
    let reply: ToCore;
    try {
      reply = { token, answer: await this.#answer(serial, question) };
    } catch (error) {
      reply = { token, error: pack(error) };
    }
    // Whoever asked is gone, and so is all that it could do with the answer.
    if (this.#tenancyOf(serial, question) === undefined) {
      if ('answer' in reply) this.#takeBack(reply.answer);
      return;
    }
    this.#tellCore(core, reply);
  }

  async #administrate(core: Core, { token, administration }: Administrated): Promise<void> {
    try {
      this.#tellCore(core, { token, answer: await this.#administration!.answer(administration) });
    } catch (error) {
      this.#tellCore(core, { token, error: pack(error) });
    }
  }

  #heardCensus({ censuses }: Core, number: number, tenants: Census): void {
    const take = censuses.get(number);
    censuses.delete(number);
    take?.(tenants);
  }

  async #answer(serial: number, question: Question): Promise<Answers[keyof Answers]> {
    const tenant = this.#tenancyOf(serial, question);
    if (tenant === undefined) {
      this.#takeBack(question);
      throw new UsageError('INVALID_ARGUMENT', 'the service has ended; ask for another one');
    }
    const { checkpoints } = tenant;
    if (question.kind === 'checkpoints') return (await checkpoints?.steps()) ?? [];
    if (question.kind === 'restore') return checkpoints!.restore(question.core, question.step);
    if (question.kind === 'gone-back') return checkpoints!.goneBack(question.core, question.step);
    if (question.kind === 'recover') return checkpoints!.recover(question.core);
    if (question.kind === 'checkpoint') return checkpoints!.add(question);
    if (question.kind === 'await-checkpoint') return checkpoints!.await(question);
    return tenant.memory.answer(question);
  }

  /** The service that a core asks for, unless it has ended; one of the same name may have come after it. */
  #tenancyOf(serial: number, { namespace }: Question): Tenancy | undefined {
    const tenancy = this.#services.get(namespace);
    return tenancy?.service.serial === serial ? tenancy : undefined;
  }

  /** A snapshot, in a question or an answer, that nobody is going to use; who it was counted for is gone. */
  #takeBack(holder: object | null): void {
    const { part, newest, snapshot } = { ...holder } as Holder;
    const memory = (snapshot ?? part?.snapshot ?? newest?.snapshot)?.memory;
    if (memory) this.#space.releaseRange(memory);
  }

  /** A core's thread has ended: only now it is certain that it touches nothing any more. */
  #lost(core: Core, error: unknown): void {
    this.#closeSockets(core);
    for (const serial of this.#ending.keys()) this.#letGo(core, serial);
    for (const number of core.censuses.keys()) this.#heardCensus(core, number, []);
    if (!this.#closing && this.failure === undefined) {
      const index = this.#cores.indexOf(core);
      const why = error === undefined ? 'without a word' : textOf(error);
      this.#fail(
        new InternalError(
          'BROKEN_INVARIANT',
          `core ${index} ended without being asked to: ${why}; start the server again, and please report it`,
          { core: index },
          error,
        ),
      );
    }
    core.thread = undefined;
    core.hasEnded();
  }

  /** Every tenant has pieces on every core: without one of them nobody can train, and nobody is left waiting. */
  #fail(failure: TributaryError): void {
    if (this.failure !== undefined) return;
    this.failure = failure;
    this.#log(`a core failed: ${failure.message}`);
    this.#tell({ close: true });
  }

  /** Whoever is still connected to a core that is gone finds out by this. */
  #closeSockets(core: Core): void {
    const { libc } = this.#host;
    if (core.doors.every(({ fd }) => fd === undefined)) return;
    for (const door of core.doors) {
      if (door.fd !== undefined) libc.close(door.fd);
      door.fd = undefined;
    }
    const open = core.descriptors.region('int32', 0, MAX_CONNECTIONS).view;
    for (const fd of open) if (fd !== 0) libc.close(fd);
    open.fill(0);
  }

  /** What is said about a tenant is bounded, since a tenant can cause it. */
  #logOf(serial: number | undefined, line: string): void {
    const all = [...this.#services.values(), ...this.#ending.values()];
    const service = all.find((one) => one.service.serial === serial)?.service;
    if (service === undefined) return this.#log(line);
    const { clock } = this.#host;
    this.#tenantLines.say(service.namespace, line, clock.nowMs());
    this.#tenantLook ??= clock.after(MINUTE_MS, () => {
      this.#tenantLook = undefined;
      this.#tenantLines.look(clock.nowMs());
    });
  }

  #log(line: string): void {
    this.#options.log?.(printable(line));
  }

  #tell(message: ToCore): void {
    for (const core of this.#cores) this.#tellCore(core, message);
  }

  #tellCore({ thread, doorbell }: Core, message: ToCore): void {
    // Without a thread the doorbell may be closed.
    if (thread === undefined) return;
    thread.post(message);
    this.#host.libc.ring(doorbell);
  }
}

type Asked = Extract<ToOffice, { serial: number }>;
type Administrated = Extract<ToOffice, { administration: unknown }>;
/** What may have a snapshot in it. */
interface Holder {
  readonly snapshot?: CorePart['snapshot'] | undefined;
  readonly part?: Partial<CorePart> | undefined;
  readonly newest?: Partial<CorePart> | undefined;
}

function textOf(error: unknown): string {
  return error instanceof Error ? error.message : String(error);
}
