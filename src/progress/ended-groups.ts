/**
 * The ids of the groups that have ended here, so that what is still said about them is not kept for ever. Ids are never
 * given twice, so it only grows; ids that follow each other take the room of one. Invariant: runs are in order, and
 * between two of them lies at least one id.
 */
export class EndedGroups {
  readonly #runs: { first: number; last: number }[] = [];

  /** How many runs of ids that follow each other are kept. */
  get runs(): number {
    return this.#runs.length;
  }

  has(id: number): boolean {
    return this.#runs.some(({ first, last }) => first <= id && id <= last);
  }

  add(id: number): void {
    if (this.has(id)) return;
    const at = this.#runs.filter(({ last }) => last < id).length;
    const before = this.#runs[at - 1];
    const after = this.#runs[at];
    const followsBefore = before?.last === id - 1;
    const precedesAfter = after?.first === id + 1;
    const first = followsBefore ? before.first : id;
    const last = precedesAfter ? after.last : id;
    this.#runs.splice(at - Number(followsBefore), Number(followsBefore) + Number(precedesAfter), {
      first,
      last,
    });
  }
}
