/**
 * Explores every order in which processes can take steps on a board, and every moment at which they can die: the real code of
 * the board, one atomic operation at a time. A process in the middle of a method is a list of what its operations
 * returned so far; it goes on by running the method again with those answers and one more. Not a test itself.
 * Invariant: two states with the same text behave alike, so each is visited once.
 */
import { Board, SERVER } from '../../src/learners/board.ts';
import type { AtomicWords, BoardShape, Filled, Identity } from '../../src/learners/board.ts';

export type MakeBoard = (words: AtomicWords, shape: BoardShape) => Board;

export interface Exploration {
  readonly shape: BoardShape;
  readonly withServer: boolean;
  /** Deaths at most, of any process. */
  readonly deaths: number;
  /** Processes started in place of dead ones, at most. */
  readonly replacements: number;
  /** The board under test. Default the real one. */
  readonly makeBoard?: MakeBoard;
}

export interface Outcome {
  readonly states: number;
  /** What went wrong first, with the steps that led there; undefined: nothing did. */
  readonly fault: string | undefined;
}

/** What a process is about to do, with what it knows. */
interface Process extends Identity {
  /** The next step of its program; 'dead' until the watchdog has seen to it, then 'gone'. */
  readonly at: string;
  readonly batch: number;
  readonly slot: number;
  /** For the server: which slot it looks at, and what it took. */
  readonly filled: Filled | undefined;
  /** What the operations of the step under way returned. */
  readonly answers: readonly number[];
}

interface State {
  readonly words: readonly number[];
  readonly processes: readonly Process[];
  /** Whose death the watchdog looks into, with the answers so far. */
  readonly watchdog: { readonly process: number; readonly answers: readonly number[] } | undefined;
  readonly deathsLeft: number;
  readonly replacementsLeft: number;
  /** How often a gradient of each batch began to be applied. */
  readonly begun: readonly number[];
  /** The batch whose gradient lies in each slot. */
  readonly contents: readonly number[];
}

class Paused extends Error {}
class Broken extends Error {}

/** Answers what is known, does one operation more, and stops before the next. */
class OneMore implements AtomicWords {
  readonly words: number[];
  readonly answers: number[];
  readonly #known: number;
  readonly #onBegin: (word: number) => void;
  #asked = 0;

  constructor(words: readonly number[], known: readonly number[], onBegin: (word: number) => void) {
    this.words = [...words];
    this.answers = [...known];
    this.#known = known.length;
    this.#onBegin = onBegin;
  }

  load(at: number): number {
    return this.#do(() => this.words[at]!);
  }

  store(at: number, value: number): void {
    this.#do(() => (this.words[at] = value));
  }

  exchange(at: number, from: number, to: number): number {
    return this.#do(() => {
      const before = this.words[at]!;
      if (before === from) {
        this.words[at] = to;
        if ((to & 7) === 3) this.#onBegin(at);
      }
      return before;
    });
  }

  #do(act: () => number): number {
    const i = this.#asked++;
    if (i < this.#known) return this.answers[i]!;
    if (i > this.#known) throw new Paused();
    const answer = act();
    this.answers.push(answer);
    return answer;
  }
}

const HEADER_WORDS = 16;

export function explore({
  shape,
  withServer,
  deaths,
  replacements,
  makeBoard = (words, of) => new Board(words, of),
}: Exploration): Outcome {
  const slots = shape.learners * shape.slots;
  // As `Learner.step` does: with a server only when there is room for the gradient.
  const begin = withServer ? 'await slot' : 'take';
  const idle = (number: number, generation: number): Process => ({
    ...{ number, generation, at: number === SERVER ? 'look' : begin },
    ...{ batch: -1, slot: 0, filled: undefined, answers: [] },
  });
  const first: State = {
    words: new Array<number>(Board.words(shape)).fill(0),
    processes: [
      ...Array.from({ length: shape.learners }, (_, learner) => idle(learner, 0)),
      ...(withServer ? [idle(SERVER, 0)] : []),
    ],
    ...{ watchdog: undefined, deathsLeft: deaths, replacementsLeft: replacements },
    begun: new Array<number>(shape.batches).fill(0),
    contents: new Array<number>(slots).fill(-1),
  };

  /** Runs as much of a method as one operation more allows; undefined if it is not at its end. */
  const advance = <T>(
    state: State,
    known: readonly number[],
    run: (board: Board) => T,
  ): { state: State; answers: readonly number[]; result: { value: T } | undefined } => {
    const begun = [...state.begun];
    const words = new OneMore(state.words, known, (at) => {
      if (++begun[at - HEADER_WORDS]! > 1) throw new Broken(`batch ${at - HEADER_WORDS} was applied twice`);
    });
    let result: { value: T } | undefined;
    try {
      result = { value: run(makeBoard(words, shape)) };
    } catch (error) {
      if (!(error instanceof Paused)) throw error;
    }
    return { state: { ...state, words: words.words, begun }, answers: words.answers, result };
  };

  const step = (state: State, i: number): State => {
    const self = state.processes[i]!;
    const to = (changed: State, next: Partial<Process>): State => ({
      ...changed,
      processes: changed.processes.map((one, j) => (j === i ? { ...one, answers: [], ...next } : one)),
    });
    const call = <T>(run: (board: Board) => T, then: (value: T) => Partial<Process>): State => {
      const after = advance(state, self.answers, run);
      return to(after.state, after.result ? then(after.result.value) : { answers: after.answers });
    };
    const { batch, slot, filled } = self;
    const place = self.number * shape.slots + slot;
    switch (self.at) {
      case 'take':
        return call(
          (board) => board.take(self),
          (taken) =>
            taken === undefined ? { at: begin } : { at: withServer ? 'compute' : 'begin', batch: taken },
        );
      case 'begin':
        return call(
          (board) => board.begin(self, batch),
          (isOwn) => ({ at: isOwn ? 'apply' : 'take' }),
        );
      case 'apply':
        return to(state, { at: 'finish' });
      case 'finish':
        return call(
          (board) => board.finish(self, batch),
          () => ({ at: 'take' }),
        );
      case 'await slot':
        return call(
          (board) => board.isEmpty(self, slot),
          (isEmpty) => ({ at: isEmpty ? 'take' : 'await slot' }),
        );
      case 'compute': {
        const server = state.processes.find(({ number }) => number === SERVER);
        const reads = server?.at === 'read' && server.filled;
        if (reads && reads.learner === self.number && reads.slot === slot) {
          throw new Broken(`learner ${self.number} writes slot ${slot} while the server reads it`);
        }
        const contents = state.contents.map((one, at) => (at === place ? batch : one));
        return to({ ...state, contents }, { at: 'fill' });
      }
      case 'fill':
        return call(
          (board) => board.fill(self, slot, batch),
          () => ({ at: 'publish' }),
        );
      case 'publish':
        return call(
          (board) => board.publish(self, batch),
          () => ({ at: begin, slot: (slot + 1) % shape.slots }),
        );
      // The server goes round all slots: takes what is there, or makes room.
      case 'look': {
        const [learner, at] = [Math.floor(slot / shape.slots), slot % shape.slots];
        return call(
          (board) => board.accept(self, learner, at),
          (found) => (found ? { at: 'read', filled: found } : { at: 'recycle' }),
        );
      }
      case 'read': {
        const { learner, slot: at, batch: wanted } = filled!;
        const content = state.contents[learner * shape.slots + at];
        if (content !== wanted)
          throw new Broken(`the server applied ${content} as the gradient of ${wanted}`);
        return to(state, { at: 'finish read' });
      }
      case 'finish read':
        return call(
          (board) => board.finish(self, filled!.batch),
          () => ({ at: 'recycle', filled: undefined }),
        );
      case 'recycle':
        return call(
          (board) => board.recycle(Math.floor(slot / shape.slots), slot % shape.slots),
          () => ({ at: 'look', slot: (slot + 1) % slots }),
        );
      default:
        throw new Error(`there is no step ${self.at}`);
    }
  };

  const reclaim = (state: State): State => {
    const i = state.watchdog?.process ?? state.processes.findIndex(({ at }) => at === 'dead');
    const dead = state.processes[i]!;
    const after = advance(state, state.watchdog?.answers ?? [], (board) => board.reclaim(dead));
    if (!after.result) return { ...after.state, watchdog: { process: i, answers: after.answers } };
    const isReplaced = state.replacementsLeft > 0;
    const next = isReplaced ? idle(dead.number, dead.generation + 1) : { ...dead, at: 'gone' };
    return {
      ...after.state,
      watchdog: undefined,
      replacementsLeft: state.replacementsLeft - Number(isReplaced),
      processes: state.processes.map((one, j) => (j === i ? next : one)),
    };
  };

  const successors = function* (state: State): Generator<readonly [string, () => State]> {
    for (const [i, { at, number }] of state.processes.entries()) {
      if (at === 'dead' || at === 'gone') continue;
      const name = number === SERVER ? 'server' : `learner ${number}`;
      yield [`${name}: ${at}`, () => step(state, i)];
      if (state.deathsLeft === 0) continue;
      const die = (one: Process, j: number) => (j === i ? { ...one, at: 'dead', answers: [] } : one);
      yield [
        `${name} dies at ${at}`,
        () => ({ ...state, deathsLeft: state.deathsLeft - 1, processes: state.processes.map(die) }),
      ];
    }
    if (state.processes.some(({ at }) => at === 'dead')) yield ['watchdog', () => reclaim(state)];
  };

  const known = new Map<string, number>([[textOf(first), 0]]);
  const states: State[] = [first];
  /** By state: from which it was reached first, and by which step. */
  const reached: (readonly [from: number, step: string] | undefined)[] = [undefined];
  const before: number[][] = [[]];
  const pathTo = (to: number): string => {
    const path: string[] = [];
    for (let at = reached[to]; at !== undefined; at = reached[at[0]]) path.unshift(at[1]);
    return path.join(', ');
  };
  for (let i = 0; i < states.length; i++) {
    for (const [name, go] of successors(states[i]!)) {
      let next: State;
      try {
        next = go();
      } catch (error) {
        if (!(error instanceof Broken)) throw error;
        return { states: states.length, fault: `${error.message}; after: ${pathTo(i)}, ${name}` };
      }
      const text = textOf(next);
      let number = known.get(text);
      if (number === undefined) {
        number = states.push(next) - 1;
        known.set(text, number);
        reached.push([i, name]);
        before.push([]);
      }
      before[number]!.push(i);
    }
  }
  const stuck = unreachable(before, states.map(isGoodEnd));
  return {
    states: states.length,
    fault: stuck === undefined ? undefined : `no way leads to the end; after: ${pathTo(stuck)}`,
  };

  /** All is applied, or nobody is left who could. */
  function isGoodEnd({ words, processes }: State): boolean {
    const isGone = (number: number) => processes.find((one) => one.number === number)?.at === 'gone';
    const learnersGone = Array.from({ length: shape.learners }, (_, i) => isGone(i)).every(Boolean);
    if (learnersGone || (withServer && isGone(SERVER))) return true;
    return words.slice(HEADER_WORDS, HEADER_WORDS + shape.batches).every((word) => word === 4);
  }
}

/** The first state from which no good one can be reached. */
function unreachable(before: readonly (readonly number[])[], isGood: readonly boolean[]): number | undefined {
  const canReach = [...isGood];
  const open = isGood.flatMap((good, i) => (good ? [i] : []));
  for (let i = open.pop(); i !== undefined; i = open.pop()) {
    for (const from of before[i]!) {
      if (canReach[from]) continue;
      canReach[from] = true;
      open.push(from);
    }
  }
  const at = canReach.indexOf(false);
  return at < 0 ? undefined : at;
}

function textOf(state: State): string {
  const { words, processes, watchdog, deathsLeft, replacementsLeft, begun, contents } = state;
  const each = processes.map(
    ({ generation, at, batch, slot, filled, answers }) =>
      `${generation} ${at} ${batch} ${slot} ${filled ? `${filled.batch} ${filled.learner} ${filled.slot}` : ''} ${answers.join(' ')}`,
  );
  return `${words.join(' ')}/${each.join('/')}/${watchdog ? `${watchdog.process} ${watchdog.answers.join(' ')}` : ''}/${deathsLeft} ${replacementsLeft}/${begun.join(' ')}/${contents.join(' ')}`;
}
