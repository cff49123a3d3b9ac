/**
 * Bugs that there once were, as edits of the sources that bring them back. They show that the simulation would find such a bug
 * again. Invariant: each edit names a text that occurs once in its file; when the code changes, its mutant changes
 * with it.
 */

export interface Mutant {
  readonly name: string;
  readonly edits: readonly { readonly file: string; readonly find: string; readonly replace: string }[];
}

export const MUTANTS: readonly Mutant[] = [];
