/**
 * Where the workers of a tenant wait for each other: rooms by name, each of which opens when all who are counted have come.
 * Knows workers by their numbers only. Invariant: who asks again with the same token, because an answer was lost, passes
 * if the room has opened for it; a room can be used again and again.
 */
import { asTributaryError, UsageError } from '../../base/index.ts';
import type { TributaryError } from '../../base/index.ts';

interface Waiting {
  readonly token: string;
  /** Told who has met, by their tokens; nothing if it passes because it has met before. */
  readonly go: (tokens?: Readonly<Record<string, string>>) => void;
  readonly fail: (error: TributaryError) => void;
}

/** Tokens of those who have passed; then the oldest is forgotten. */
const REMEMBERED = 4096;

/** Rooms in which somebody waits: workers wait for one thing at a time. */
const MAX_ROOMS = 4096;

export class Meetings {
  readonly #rooms = new Map<string, Map<number, Waiting>>();
  readonly #passed = new Set<string>();
  readonly #counted: () => readonly number[];

  constructor(counted: () => readonly number[]) {
    this.#counted = counted;
  }

  enter(name: string, worker: number, waiting: Waiting): void {
    if (this.#passed.has(`${name} ${worker} ${waiting.token}`)) return open(waiting);
    if (!this.#rooms.has(name) && this.#rooms.size >= MAX_ROOMS) return waiting.fail(tooMany(name, worker));
    const room = this.#rooms.get(name) ?? new Map<number, Waiting>();
    this.#rooms.set(name, room.set(worker, waiting));
    this.#lookInto(name, room, this.#counted());
  }

  /** A worker is gone, and with it whoever waited in its name. */
  leave(worker: number): void {
    for (const [name, room] of this.#rooms) {
      if (room.delete(worker) && room.size === 0) this.#rooms.delete(name);
    }
    this.look();
  }

  /** Opens the rooms that are full by now. */
  look(): void {
    const counted = this.#counted();
    for (const [name, room] of [...this.#rooms]) this.#lookInto(name, room, counted);
  }

  #lookInto(name: string, room: ReadonlyMap<number, Waiting>, counted: readonly number[]): void {
    if (!counted.every((worker) => room.has(worker))) return;
    this.#rooms.delete(name);
    for (const [worker, { token }] of room) this.#passed.add(`${name} ${worker} ${token}`);
    while (this.#passed.size > REMEMBERED) this.#passed.delete(this.#passed.values().next().value!);
    const tokens = Object.fromEntries([...room].map(([worker, { token }]) => [worker, token]));
    for (const waiting of room.values()) open(waiting, tokens);
  }

  /** Sends away those who wait, except in rooms whose names begin so. */
  clear(error: TributaryError, except: string): void {
    for (const [name, room] of [...this.#rooms]) {
      if (name.startsWith(except)) continue;
      this.#rooms.delete(name);
      for (const { fail } of room.values()) fail(error);
    }
  }
}

function tooMany(room: string, worker: number): UsageError {
  return new UsageError(
    'INVALID_ARGUMENT',
    `worker ${worker} waits for the others at ${MAX_ROOMS} places, and came to '${room}'; await one meeting before the next`,
    { worker, room, expected: MAX_ROOMS },
  );
}

/** What goes wrong for one must not leave the others waiting. */
function open({ go, fail }: Waiting, tokens?: Readonly<Record<string, string>>): void {
  try {
    go(tokens);
  } catch (error) {
    fail(asTributaryError(error));
  }
}
