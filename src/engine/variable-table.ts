/**
 * Who uses which variable: turns read and mutate sets into "waits for". Names only; the values live with the caller.
 * For each variable it keeps the last writer and the readers pushed after it, as far as they have not ended: whoever
 * waits for these waits for all earlier ones too, so an operation costs as much as its sets are long (a reader is
 * waited for by one writer only). It also keeps which variables a failed writer left without a valid value. Invariant:
 * a variable that nobody uses and that is valid is not in the table.
 */
import type { Operation } from './operation.ts';

/** Why a variable has no valid value. */
export interface Damage {
  /** The operation that was to write the variable. */
  readonly writer: string;
  /** The operation that failed first: the writer, or one whose failure kept the writer from running. */
  readonly culprit: string;
  /** What the culprit failed with. */
  readonly error: unknown;
}

interface Variable {
  writer: Operation | undefined;
  /** Those pushed after the writer. */
  readonly readers: Set<Operation>;
  damage: Damage | undefined;
}

export class VariableTable {
  readonly #variables = new Map<string, Variable>();

  get size(): number {
    return this.#variables.size;
  }

  /** Enters an operation behind all that were entered before; returns those it must wait for. */
  enter(operation: Operation): Set<Operation> {
    const blockers = new Set<Operation>();
    for (const name of operation.mutates) {
      const variable = this.#variable(name);
      if (variable.writer) blockers.add(variable.writer);
      for (const reader of variable.readers) blockers.add(reader);
      variable.writer = operation;
      variable.readers.clear();
    }
    for (const name of operation.reads) {
      if (operation.mutates.has(name)) continue;
      const variable = this.#variable(name);
      if (variable.writer) blockers.add(variable.writer);
      variable.readers.add(operation);
    }
    return blockers;
  }

  /** The operation has ended. Unless damage is given, what it was to write is now valid. */
  leave(operation: Operation, damage?: Damage): void {
    for (const name of operation.mutates) {
      const variable = this.#variables.get(name)!;
      if (variable.writer === operation) variable.writer = undefined;
      variable.damage = damage;
      this.#dropIfUnused(name, variable);
    }
    for (const name of operation.reads) {
      if (operation.mutates.has(name)) continue;
      const variable = this.#variables.get(name)!;
      variable.readers.delete(operation);
      this.#dropIfUnused(name, variable);
    }
  }

  /** The first variable that the operation reads and that has no valid value. */
  damageBefore(operation: Operation): { readonly variable: string; readonly damage: Damage } | undefined {
    for (const name of operation.reads) {
      const damage = this.#variables.get(name)?.damage;
      if (damage) return { variable: name, damage };
    }
    return undefined;
  }

  /** When these have ended, all entered so far that use one of the variables have. */
  lastUsers(names: readonly string[]): Set<Operation> {
    const users = new Set<Operation>();
    for (const name of names) {
      const variable = this.#variables.get(name);
      if (variable?.writer) users.add(variable.writer);
      for (const reader of variable?.readers ?? []) users.add(reader);
    }
    return users;
  }

  #variable(name: string): Variable {
    let variable = this.#variables.get(name);
    if (!variable) {
      variable = { writer: undefined, readers: new Set(), damage: undefined };
      this.#variables.set(name, variable);
    }
    return variable;
  }

  #dropIfUnused(name: string, { writer, readers, damage }: Variable): void {
    if (!writer && readers.size === 0 && !damage) this.#variables.delete(name);
  }
}
