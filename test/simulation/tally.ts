/**
 * How often pushes of ones must be found in the values of one tenant's tensors, where element e is pushed to by worker e
 * modulo the workers. At most what was sent; at least what was acknowledged, less what a power cut may have taken: what
 * no checkpoint held that was reported to be on the disk. Invariant: the least never falls but by a power cut that
 * the tenant did not ask to survive, or a new folder.
 */
export class Tally {
  readonly #workers: number;
  /** By worker. */
  readonly #sent: number[];
  readonly #acknowledged: number[];
  /** Sent, and neither acknowledged nor refused; those of killed workers stay. */
  readonly #open: number[];
  /** By tensor and worker: pushes that were acknowledged and need not be there. */
  readonly #missing: number[][];
  /** By tensor and element: what is there although more were missing. */
  #seen: number[][];
  /** By tensor and element: what is there whatever happens. */
  #durable: readonly (readonly number[])[];
  #folders = 0;
  #cuts = 0;

  constructor(workers: number, lengths: readonly number[]) {
    this.#workers = workers;
    [this.#sent, this.#acknowledged, this.#open] = [zeros(workers), zeros(workers), zeros(workers)];
    this.#missing = lengths.map(() => zeros(workers));
    this.#seen = lengths.map(zeros);
    this.#durable = lengths.map(zeros);
  }

  /** Counts a push of the worker that has just been sent. */
  async count<Answer>(worker: number, push: Promise<Answer>): Promise<Answer> {
    const [folders, cuts] = [this.#folders, this.#cuts];
    this.#sent[worker]!++;
    this.#open[worker]!++;
    try {
      const answer = await push;
      if (folders === this.#folders) {
        this.#acknowledged[worker]!++;
        // The answer may have been on its way when the power was cut.
        if (cuts !== this.#cuts) for (const missing of this.#missing) missing[worker]!++;
      }
      return answer;
    } finally {
      this.#open[worker]!--;
    }
  }

  /** Nothing is there any more. What is under way may arrive in the new folder. */
  beginAnew(): void {
    this.#folders++;
    this.#acknowledged.fill(0);
    for (let worker = 0; worker < this.#workers; worker++) this.#sent[worker] = this.#open[worker]!;
    for (const missing of this.#missing) missing.fill(0);
    this.#seen = this.#seen.map(({ length }) => zeros(length));
    this.#durable = this.#seen.map(({ length }) => zeros(length));
  }

  powerWasCut(): void {
    this.#cuts++;
    this.#seen = this.#durable.map((counts) => [...counts]);
    for (let worker = 0; worker < this.#workers; worker++) this.#reckon(worker);
  }

  /** A checkpoint is asked for. To be called when it is reported to be on the disk. */
  checkpoint(): () => void {
    const [folders, cuts, least] = [this.#folders, this.#cuts, this.#least()];
    return () => {
      // One that is taken again after a power cut holds what was left then.
      if (folders === this.#folders && cuts === this.#cuts) this.#durable = least;
    };
  }

  /** Values are about to be pulled. */
  glance(): Glance {
    return { folders: this.#folders, cuts: this.#cuts, before: this.#least() };
  }

  /**
   * For a worker none of whose pushes is under way. To be called with the values that were pulled behind the glance; says what
   * is wrong with them. What a worker sees of its own pushes is there from then on, even if more may have been missing.
   */
  look(
    worker: number,
    { folders, cuts, before }: Glance,
  ): (values: readonly Float32Array[]) => string | undefined {
    return (values) => {
      const isSame = folders === this.#folders && cuts === this.#cuts;
      for (const [tensor, all] of values.entries()) {
        for (const [e, value] of all.entries()) {
          const [count, whose] = [-value, e % this.#workers];
          // Values from around a power cut are older or newer than it; whoever looks next knows.
          const least = isSame ? before[tensor]![e]! : 0;
          if (
            !(count >= least && count <= this.#sent[whose]! && Number.isInteger(count)) &&
            folders === this.#folders
          )
            return (
              `tensor ${tensor}, element ${e}: ${count} pushes of worker ${whose} were applied, ` +
              `but ${least} must have been, and ${this.#sent[whose]} were sent`
            );
        }
      }
      if (!isSame) return undefined;
      for (const [tensor, all] of values.entries())
        for (let e = worker; e < all.length; e += this.#workers) this.#seen[tensor]![e] = -all[e]!;
      this.#reckon(worker);
      return undefined;
    };
  }

  /**
   * Cores may have lost more or less of a tensor. Its pushes go on behind the one that lost most, and to the others they
   * are repetitions, until all are where the first is.
   */
  #reckon(worker: number): void {
    for (const [tensor, counts] of this.#seen.entries()) {
      const own = counts.filter((_, e) => e % this.#workers === worker);
      this.#missing[tensor]![worker] = this.#acknowledged[worker]! - Math.min(...own);
    }
  }

  #least(): number[][] {
    return this.#seen.map((counts, tensor) =>
      counts.map((count, e) => {
        const worker = e % this.#workers;
        return Math.max(count, this.#acknowledged[worker]! - this.#missing[tensor]![worker]!);
      }),
    );
  }
}

export interface Glance {
  readonly folders: number;
  readonly cuts: number;
  /** The least that must be there. */
  readonly before: readonly (readonly number[])[];
}

function zeros(length: number): number[] {
  return new Array<number>(length).fill(0);
}
