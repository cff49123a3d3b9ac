/**
 * How the coordinator of `tributary bench allreduce` talks with the ranks of every peer, ours included: lines of text on a
 * loopback connection for each rank. `hello TOKEN RANK PID` opens it; then `turn BYTES ITERATIONS BURST ALGORITHM` is
 * answered by `MICROSECONDS ok|wrong [ALGORITHM]` or `error TEXT`, until `quit`. Both ends are here. Invariants: a
 * stranger without the token is turned away; between turns a rank only waits for a line.
 */
import { randomBytes, timingSafeEqual } from 'node:crypto';
import { once } from 'node:events';
import { connect, createServer } from 'node:net';
import type { AddressInfo, Server, Socket } from 'node:net';
import { createInterface } from 'node:readline';
import type { Interface } from 'node:readline';
import { PeerError } from '../../base/index.ts';

export interface ControlAddress {
  readonly host: string;
  readonly port: number;
  /** Known to the ranks that the coordinator started, and to nobody else. */
  readonly token: string;
}

export interface Turn {
  /** Length of the vector. */
  readonly bytes: number;
  /** Operations to time. */
  readonly iterations: number;
  /** Operations between two fillings of the vector, which are not timed: sums in place grow with each. */
  readonly burst: number;
  /** Or variant of a peer; one word. */
  readonly algorithm: string;
}

export interface TurnResult {
  /** Microseconds for each operation. */
  readonly micros: number;
  /** The sums were right. */
  readonly ok: boolean;
  /** What the rank chose where it had the choice; one word. */
  readonly algorithm?: string | undefined;
}

const HOST = '127.0.0.1';
const MAX_LINE = 4096;
const WORD = /^[\w.+-]+$/;

/** The coordinator's end: ranks come to it, and wait in `take` until they are asked for. */
export class ControlServer {
  readonly address: ControlAddress;
  readonly #server: Server;
  readonly #sockets = new Set<Socket>();
  readonly #links = new Map<number, RankLink>();
  #onLink: (() => void) | undefined;

  private constructor(server: Server) {
    this.#server = server;
    const { port } = server.address() as AddressInfo;
    this.address = { host: HOST, port, token: randomBytes(16).toString('hex') };
    server.on('connection', (socket) => this.#welcome(socket));
  }

  static async listen(): Promise<ControlServer> {
    const server = createServer();
    server.listen(0, HOST);
    await once(server, 'listening');
    return new ControlServer(server);
  }

  /** How many ranks are here. */
  get count(): number {
    return this.#links.size;
  }

  /** Called whenever another rank has come. */
  onRank(listener: () => void): void {
    this.#onLink = listener;
  }

  /** The ranks that are here, in their order. */
  links(): readonly RankLink[] {
    return [...this.#links.values()].sort((a, b) => a.rank - b.rank);
  }

  close(): void {
    this.#server.close();
    for (const socket of this.#sockets) socket.destroy();
  }

  #welcome(socket: Socket): void {
    this.#sockets.add(socket);
    socket.setNoDelay(true).setEncoding('utf8');
    socket.on('error', () => socket.destroy());
    socket.once('close', () => this.#sockets.delete(socket));
    const lines = createInterface({ input: socket });
    // It repeats the errors of the socket, whose end tells all there is to know.
    lines.on('error', () => undefined);
    lines.once('line', (line) => {
      const [hello, token = '', rank, pid] = line.slice(0, MAX_LINE).split(' ');
      const number = Number(rank);
      if (hello !== 'hello' || !sameText(token, this.address.token) || this.#links.has(number)) {
        socket.destroy();
        return;
      }
      this.#links.set(number, new RankLink(socket, lines, number, Number(pid)));
      this.#onLink?.();
    });
  }
}

/** A connected rank, seen from the coordinator. */
export class RankLink {
  readonly rank: number;
  readonly pid: number;
  readonly #socket: Socket;
  #waiter: { resolve(result: TurnResult): void; reject(error: Error): void } | undefined;

  constructor(socket: Socket, lines: Interface, rank: number, pid: number) {
    this.rank = rank;
    this.pid = pid;
    this.#socket = socket;
    lines.on('line', (line) => this.#answer(line));
    socket.once('close', () => this.#fail(`rank ${rank} ended before it answered`));
  }

  get connected(): boolean {
    return !this.#socket.destroyed;
  }

  /** One at a time. The caller has the deadline: it ends the rank, which ends this. */
  turn({ bytes, iterations, burst, algorithm }: Turn): Promise<TurnResult> {
    return new Promise((resolve, reject) => {
      this.#waiter = { resolve, reject };
      if (this.#socket.destroyed) this.#fail(`rank ${this.rank} has ended`);
      else this.#socket.write(`turn ${bytes} ${iterations} ${burst} ${algorithm}\n`);
    });
  }

  quit(): void {
    if (!this.#socket.destroyed) this.#socket.end('quit\n');
  }

  #answer(line: string): void {
    const [micros, verdict, algorithm] = line.split(' ');
    if (!(Number(micros) > 0) || (verdict !== 'ok' && verdict !== 'wrong')) {
      this.#fail(`rank ${this.rank} answered '${line.slice(0, 300)}'`);
      return;
    }
    this.#waiter?.resolve({ micros: Number(micros), ok: verdict === 'ok', algorithm });
    this.#waiter = undefined;
  }

  #fail(what: string): void {
    this.#waiter?.reject(
      new PeerError('PEER_EXITED', `${what}; run its program by hand to see why`, { rank: this.rank }),
    );
    this.#waiter = undefined;
  }
}

/**
 * A rank's end: connects, then answers every turn by the handler, one after the other, until the coordinator says `quit`
 * or is gone. A handler that fails answers with its error and goes on.
 */
export async function serveTurns(
  address: ControlAddress,
  rank: number,
  handler: (turn: Turn) => Promise<TurnResult>,
): Promise<void> {
  const socket = connect(address.port, address.host);
  await once(socket, 'connect');
  socket.setNoDelay(true);
  socket.on('error', () => socket.destroy());
  socket.write(`hello ${address.token} ${rank} ${process.pid}\n`);
  try {
    for await (const line of createInterface({ input: socket })) {
      if (line === 'quit') return;
      socket.write(`${await answerTo(line, handler)}\n`);
    }
  } catch {
    // Only the connection fails here: the coordinator is gone, which is a reason to stop.
  } finally {
    socket.destroy();
  }
}

async function answerTo(line: string, handler: (turn: Turn) => Promise<TurnResult>): Promise<string> {
  try {
    const { micros, ok, algorithm } = await handler(parseTurn(line));
    return [micros.toFixed(6), ok ? 'ok' : 'wrong', ...(algorithm === undefined ? [] : [algorithm])].join(
      ' ',
    );
  } catch (error) {
    const text = error instanceof Error ? error.message : String(error);
    return `error ${text.replaceAll('\n', ' ').slice(0, MAX_LINE)}`;
  }
}

/** Throws where the line is no turn. */
export function parseTurn(line: string): Turn {
  const [command, bytes, iterations, burst, algorithm = ''] = line.split(' ');
  const turn = { bytes: Number(bytes), iterations: Number(iterations), burst: Number(burst), algorithm };
  const counts = [turn.bytes, turn.iterations, turn.burst];
  if (command !== 'turn' || !counts.every((n) => Number.isSafeInteger(n) && n > 0) || !WORD.test(algorithm)) {
    throw new PeerError(
      'PROTOCOL_VIOLATION',
      `expected 'turn BYTES ITERATIONS BURST ALGORITHM' but got '${line.slice(0, 200)}'; use the coordinator of the same version`,
      { line: line.slice(0, 200) },
    );
  }
  return turn;
}

function sameText(a: string, b: string): boolean {
  return a.length === b.length && timingSafeEqual(Buffer.from(a), Buffer.from(b));
}
