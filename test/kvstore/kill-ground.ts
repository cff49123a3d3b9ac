/**
 * Servers and workers as processes of their own, for tests that kill them: starts them, starts them again, hears what they
 * say (lines of JSON) and clears away. What workers do is in the programs beside it. Invariants: every wait has a deadline
 * and ends early if a process fails by itself; after `close` no process, folder or segment is left.
 */
import { spawn } from 'node:child_process';
import { randomBytes } from 'node:crypto';
import { mkdtempSync, rmSync } from 'node:fs';
import { createServer } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { setTimeout as pause } from 'node:timers/promises';
import { fileURLToPath } from 'node:url';
import { removeStaleSegments } from '../../src/memory/index.ts';
import type { ServiceAccess, ServiceOptions } from '../../src/server/index.ts';
import { RankProcess } from '../support/rank-processes.ts';
import type { ServerAssignment } from './server-program.ts';
import { programOf } from '../support/test-program.ts';

export interface GroundOptions {
  readonly servers: number;
  readonly cores: number;
  /** More of the service. Its checkpoints are kept in a folder of each server. */
  readonly service?: Partial<ServiceOptions>;
}

const DEADLINE_MS = 60_000;
/** Below the ports that systems give to callers: one that dials its own port would be connected with itself. */
const [FIRST_PORT, LAST_PORT] = [12_000, 32_000];

/** A server or a worker: one process after the other. */
export class Place {
  readonly title: string;
  readonly processes: RankProcess[] = [];
  readonly #launch: () => RankProcess;

  constructor(title: string, launch: () => RankProcess) {
    this.title = title;
    this.#launch = launch;
    this.start();
  }

  get process(): RankProcess {
    return this.processes.at(-1)!;
  }

  start(): void {
    this.processes.push(this.#launch());
  }
}

export class KillGround {
  readonly access: ServiceAccess;
  readonly servers: readonly Place[];
  readonly workers: Place[] = [];
  /** Of each server. */
  readonly folders: readonly string[];
  readonly addresses: readonly string[];
  readonly #folder: string;
  #news: () => void = () => undefined;

  static async start(options: GroundOptions): Promise<KillGround> {
    const ports: number[] = [];
    while (ports.length < options.servers) {
      const port = await freePorts(options.cores);
      if (ports.every((other) => Math.abs(port - other) >= options.cores)) ports.push(port);
    }
    const ground = new KillGround(options, ports);
    await ground.ready();
    return ground;
  }

  private constructor({ servers, cores, service = {} }: GroundOptions, ports: readonly number[]) {
    this.#folder = mkdtempSync(join(tmpdir(), 'kills-'));
    this.access = { namespace: 'killed', nonce: randomBytes(32).toString('hex') };
    this.addresses = ports.map((port) => `127.0.0.1:${port}`);
    this.folders = ports.map((_, i) => join(this.#folder, `server-${i}`));
    this.servers = Array.from({ length: servers }, (_, i) => {
      const assignment: ServerAssignment = {
        ...{ port: ports[i]!, cores },
        service: { ...this.access, folder: this.folders[i], ...service },
      };
      return new Place(`server ${i}`, () => this.#launch('server-program', assignment));
    });
  }

  /** `assignment` is asked for at each start. */
  addWorker(program: string, assignment: () => object): Place {
    const place = new Place(`worker ${this.workers.length}`, () => this.#launch(program, assignment()));
    this.workers.push(place);
    return place;
  }

  /** All servers can be reached. */
  async ready(): Promise<void> {
    await this.until('all servers are ready', () =>
      this.servers.every(({ process }) => process.said('ready').length > 0),
    );
  }

  /** `kill -9`; returns when the process is gone. */
  async kill({ process, title }: Place): Promise<void> {
    process.kill();
    await this.until(`${title} is gone`, () => process.ended);
  }

  /** Waits until `isSo`, looking again at every line that a process says; ends early if a process fails. */
  async until(what: string, isSo: () => boolean): Promise<void> {
    const hasFailed = () => this.#processes().some((one) => one.failed);
    await this.#await(what, () => isSo() || hasFailed());
    if (!isSo()) throw new Error(`a process failed before ${what}:\n${this.describe()}`);
  }

  async #await(what: string, isSo: () => boolean, deadlineMs = DEADLINE_MS): Promise<void> {
    const deadline = performance.now() + deadlineMs;
    while (!isSo()) {
      const leftMs = deadline - performance.now();
      if (leftMs <= 0)
        throw new Error(`after ${deadlineMs} ms there was still not: ${what}\n${this.describe()}`);
      const news = new Promise<void>((resolve) => (this.#news = resolve));
      const timer = new AbortController();
      await Promise.race([news, pause(leftMs, undefined, { signal: timer.signal }).catch(() => undefined)]);
      timer.abort();
    }
  }

  /** What everybody said last, for messages. */
  describe(): string {
    const places = this.#places().map(({ title, process, processes }) => {
      const last = process.lines.slice(-3).map((line) => JSON.stringify(line));
      const state = process.ended ? ' (ended)' : '';
      return `${title}, process ${processes.length}${state}: ${last.join(' ')} ${process.errors}`;
    });
    return places.join('\n');
  }

  /** Lets the servers end by themselves; whoever was not killed must have ended well. */
  async end(): Promise<void> {
    await this.until('all workers have ended', () => this.workers.every(({ process }) => process.ended));
    for (const { process } of this.servers) process.tell('end');
    await this.until('all servers have ended', () => this.servers.every(({ process }) => process.ended));
  }

  async close(): Promise<void> {
    const all = this.#processes();
    for (const one of all) if (!one.ended) one.kill();
    await this.#await('everybody is gone', () => all.every((one) => one.ended));
    rmSync(this.#folder, { recursive: true, force: true });
    // What the killed leave in shared memory goes with the next segment made on the machine; here, at once.
    removeStaleSegments();
  }

  #places(): readonly Place[] {
    return [...this.servers, ...this.workers];
  }

  #processes(): readonly RankProcess[] {
    return this.#places().flatMap(({ processes }) => processes);
  }

  #launch(program: string, assignment: object): RankProcess {
    const path = fileURLToPath(new URL(`./${program}.ts`, import.meta.url));
    const args = [...programOf(path), JSON.stringify(assignment)];
    const child = spawn(process.execPath, args, { stdio: ['pipe', 'pipe', 'pipe'] });
    return new RankProcess(child, () => this.#news());
  }
}

/** The first of so many neighbouring ports that are free. */
async function freePorts(count: number): Promise<number> {
  for (;;) {
    const first = FIRST_PORT + Math.floor(Math.random() * (LAST_PORT - FIRST_PORT));
    const free = await Promise.all(Array.from({ length: count }, (_, i) => isFree(first + i)));
    if (free.every(Boolean)) return first;
  }
}

function isFree(port: number): Promise<boolean> {
  return new Promise((resolve) => {
    const listener = createServer().once('error', () => resolve(false));
    listener.listen(port, '127.0.0.1', () => listener.close(() => resolve(true)));
  });
}
