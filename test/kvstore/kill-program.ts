/**
 * What the programs that tests kill have in common: their assignment, what they say and what they are told, a line each.
 * Invariant: a program whose test is gone ends.
 */
import { createInterface } from 'node:readline';

export function readAssignment<T>(): T {
  return JSON.parse(process.argv[2]!) as T;
}

export function say(what: string, facts: object = {}): void {
  process.stdout.write(`${JSON.stringify({ what, atMs: performance.now(), ...facts })}\n`);
}

/** Returns a function that ends the listening, so that the process can end. */
export function listen(hear: (line: string) => void): () => void {
  const lines = createInterface(process.stdin).on('line', hear);
  const orphaned = () => process.exit(1);
  lines.once('close', orphaned);
  return () => {
    lines.off('close', orphaned).close();
    process.stdin.destroy();
  };
}

/** Steps that may be done so far; whoever wants to do a later one waits. */
export class Limit {
  #upTo: number;
  #waiting: { readonly step: number; readonly go: () => void }[] = [];

  constructor(upTo: number) {
    this.#upTo = upTo;
  }

  raise(upTo: number): void {
    this.#upTo = Math.max(upTo, this.#upTo);
    for (const one of this.#waiting.splice(0)) {
      if (one.step <= this.#upTo) one.go();
      else this.#waiting.push(one);
    }
  }

  reached(step: number): Promise<void> {
    if (step <= this.#upTo) return Promise.resolve();
    return new Promise((go) => this.#waiting.push({ step, go }));
  }
}
