/**
 * The connections of a worker to all cores of all servers: finds the cores of each server, and whether it shares memory with
 * this process. Invariant: cores are numbered through all servers, in the order in which the servers were given.
 */
import { PeerError } from '../../base/index.ts';
import type { TributaryError } from '../../base/index.ts';
import type { SharedSpace } from '../../memory/index.ts';
import type { Welcome } from '../../server/index.ts';
import { internetAddress, parseAddresses, resolveHost } from '../../sockets/index.ts';
import type { HostPort, TlsTunnel } from '../../sockets/index.ts';
import { CoreLine } from './core-line.ts';
import type { LineOptions } from './core-line.ts';
import { OtherWorkers } from './other-workers.ts';

export interface CommonLineOptions extends Omit<LineOptions, 'title' | 'places' | 'onWaiting' | 'others'> {
  /** Receives a line while a server is not reached, or other workers are awaited. */
  readonly log: (line: string) => void;
  /** The numeric address of a host name. Default: as the system says. */
  readonly resolve?: ((host: string) => Promise<string>) | undefined;
}

/** Of one server, however many cores it has. */
const LINE_EVERY_MS = 10_000;

export class ServerLines {
  readonly lines: readonly CoreLine[];
  readonly servers: number;
  readonly coresPerServer: number;
  /** For each core: whether it uses the memory of this process in place. */
  readonly isShared: readonly boolean[];

  private constructor(byServer: readonly (readonly CoreLine[])[], isShared: readonly boolean[]) {
    this.lines = byServer.flat();
    this.servers = byServer.length;
    this.coresPerServer = byServer[0]!.length;
    this.isShared = byServer.flatMap((lines, server) => lines.map(() => isShared[server]!));
  }

  /** `mayShareMemory`, of each server: false to send everything even within one host. */
  static async open(
    addresses: readonly string[],
    options: CommonLineOptions,
    tunnel: TlsTunnel | undefined,
    mayShareMemory: (server: number) => boolean,
  ): Promise<ServerLines> {
    const open: CoreLine[] = [];
    let failure: TributaryError | undefined;
    const { worker, settings, access, log, resolve = resolveHost } = options;
    const others = new OtherWorkers({ worker, workers: settings.workers, namespace: access.namespace, log });
    const notes = addresses.map(() => seldom(log));
    const lineTo = async (places: readonly HostPort[], server: number): Promise<[CoreLine, Welcome]> => {
      const found = await Promise.all(
        places.map(async ({ host, port }) => ({
          address: tunnel?.dialAddress ?? internetAddress(await resolve(host), port),
          throughTunnel: tunnel && { host, port },
        })),
      );
      // The lookup of the name took longer than another server's refusal: nobody would close the line.
      if (failure !== undefined) throw failure;
      const line = new CoreLine({
        ...options,
        ...{ onWaiting: notes[server]!, others },
        title: `server ${server} at ${places.map(({ host, port }) => `${host}:${port}`).join(' or ')}`,
        places: found,
      });
      open.push(line);
      return [line, await line.open()];
    };
    try {
      const byServer = await Promise.all(
        addresses.map(async (address, server) => {
          const places = parseAddresses(address);
          const [first, welcome] = await lineTo(rotated(places, worker), server);
          const others = await Promise.all(
            welcome.ports.slice(1).map(async (_port, i) => {
              const core = i + 1;
              const ofCore = places.map((place) => ({
                ...place,
                port: portOf(place, core, welcome, places.length === 1),
              }));
              return (await lineTo(rotated(ofCore, worker + core), server))[0];
            }),
          );
          return { lines: [first, ...others], welcome };
        }),
      );
      checkSameCores(byServer.map(({ lines }) => lines.length));
      const { space } = options.resources;
      return new ServerLines(
        byServer.map(({ lines }) => lines),
        byServer.map(({ welcome }, server) => mayShareMemory(server) && isOnThisHost(space, welcome)),
      );
    } catch (error) {
      failure = error as TributaryError;
      for (const line of open) line.close(failure);
      throw error;
    }
  }

  close(error: TributaryError): void {
    for (const line of this.lines) line.close(error);
  }
}

/**
 * Each core, of each worker, has another address first: so all addresses carry the same, also where
 * there are fewer cores than addresses.
 */
function rotated<T>(places: readonly T[], by: number): readonly T[] {
  const first = by % places.length;
  return [...places.slice(first), ...places.slice(0, first)];
}

/** Of a core at that address, which the server knows by the port of its first core. */
function portOf({ port }: HostPort, core: number, { ports, addresses }: Welcome, isOnly: boolean): number {
  if (isOnly) return ports[core]!;
  const there = addresses.find(([first]) => first === port);
  // Behind ports that are forwarded: in a row, as the server has them.
  return there?.[core] ?? port + core;
}

/** Passes on one line every ten seconds. */
export function seldom(log: (line: string) => void): LineOptions['onWaiting'] {
  let nextMs = -Infinity;
  return (nowMs, line) => {
    if (nowMs < nextMs) return;
    nextMs = nowMs + LINE_EVERY_MS;
    log(line);
  };
}

/** Only a process of the same host finds the server's segment, with the word in it that the server named. */
function isOnThisHost(space: SharedSpace, { beacon }: Welcome): boolean {
  if (beacon === undefined) return false;
  try {
    const segment = space.attachSegment(beacon.segment);
    const [word] = segment.region('int32', 0, 1).view;
    segment.close();
    return word === beacon.word;
  } catch {
    return false;
  }
}

function checkSameCores(cores: readonly number[]): void {
  if (cores.every((count) => count === cores[0])) return;
  throw new PeerError(
    'REFUSED',
    `the servers have ${cores.join(', ')} cores; start all of them with the same number`,
    { cores },
  );
}
