/**
 * Operations that end when the test says so. Not a scheduler: what begins when is the engine's doing and is only noted.
 * Invariant: `begun` lists names in the order in which the engine called `run`.
 */
import type { DependencyEngine, OperationOptions } from '../../src/engine/index.ts';

export class ControlledOperations {
  readonly begun: string[] = [];
  readonly #engine: DependencyEngine;
  readonly #endings = new Map<string, { resolve: (value: string) => void; reject: (error: Error) => void }>();

  constructor(engine: DependencyEngine) {
    this.#engine = engine;
  }

  /** Pushes; the result is the name. */
  push(name: string, options: Omit<OperationOptions<string>, 'name' | 'run'> = {}): Promise<string> {
    const run = () => {
      this.begun.push(name);
      return new Promise<string>((resolve, reject) => this.#endings.set(name, { resolve, reject }));
    };
    return this.#engine.push({ name, run, ...options });
  }

  async end(name: string): Promise<void> {
    this.#endings.get(name)!.resolve(name);
    this.#endings.delete(name);
    await settled();
  }

  async fail(name: string, error: Error): Promise<void> {
    this.#endings.get(name)!.reject(error);
    this.#endings.delete(name);
    await settled();
  }

  /** Ends all, also those that begin meanwhile. */
  async endAll(): Promise<void> {
    for (const name of this.#endings.keys()) await this.end(name);
  }
}

/** All reactions to what has happened so far have happened: a macrotask comes after every microtask. */
export function settled(): Promise<void> {
  return new Promise((resolve) => setImmediate(resolve));
}
