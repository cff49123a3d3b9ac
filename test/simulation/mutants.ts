/**
 * Bugs that there once were, as edits of the sources that bring them back. They show that the simulation would find such a bug
 * again. Invariant: each edit names a text that occurs once in its file; when the code changes, its mutant changes
 * with it.
 */

export interface Mutant {
  readonly name: string;
  readonly edits: readonly { readonly file: string; readonly find: string; readonly replace: string }[];
}

export const MUTANTS: readonly Mutant[] = [
  {
    name: 'ended-memory-by-timer',
    edits: [
      {
        file: 'src/server/parameter-server.ts',
        find: 'this.#tell({ endService: serial });',
        replace:
          'this.#tell({ endService: serial }); this.#host.clock.after(1000, () => void this.#clear(known));',
      },
      {
        file: 'src/server/parameter-server.ts',
        find: 'if (!tenancy?.holders.delete(core) || tenancy.holders.size > 0) return;',
        replace: 'if (tenancy) return;',
      },
    ],
  },
  {
    name: 'first-values-not-logged',
    edits: [
      {
        file: 'src/server/cores/tenant.ts',
        find: "this.journal.log({ kind: 'values', batch: number, plan, values });",
        replace: 'void number;',
      },
    ],
  },
  {
    name: 'acknowledged-before-the-flush',
    edits: [
      {
        file: 'src/server/cores/journal.ts',
        find: 'else if (this.#log?.isDirty) this.#held.push({ go, fail, isLogged });',
        replace:
          'else if (this.#log?.isDirty) (go(), this.#held.push({ go: () => undefined, fail, isLogged }));',
      },
    ],
  },
];
