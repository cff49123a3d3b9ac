/**
 * Asks all cores of all servers for checkpoints, and knows the newest that all servers of a
 * training in lock step have, which none of them may remove: if one is lost, all go back to it
 * together. Servers write at their own speed and some writes fail, so each says what it keeps with
 * every answer, and every request names what they have in common. Invariant: what is named was kept
 * by all servers, and they keep it until a newer one is named to them.
 */
import { UsageError } from '../../base/index.ts';
import type { TributaryError } from '../../base/index.ts';
import type { Common, Header } from '../../server/index.ts';
import type { CoreLine } from './core-line.ts';
import { allAnswered } from './push-answers.ts';

export interface StoreCheckpointsOptions {
  readonly lines: readonly Pick<CoreLine, 'request'>[];
  readonly namespace: string;
  /** There are several servers, which go back together. */
  readonly isShared: boolean;
  /** Called when the first core has answered, which it does when all workers have asked it. */
  readonly onMet: () => void;
}

export class StoreCheckpoints {
  readonly #lines: StoreCheckpointsOptions['lines'];
  readonly #namespace: string;
  readonly #onMet: () => void;
  /** The newest that all servers have; null: none is known; undefined: there is one server. */
  #common: Common;
  /**
   * The last step that was answered for, and is not known to be on the disks: a server that is
   * started again knows nothing of it.
   */
  #asked: number | undefined;

  constructor({ lines, namespace, isShared, onMet }: StoreCheckpointsOptions) {
    this.#lines = lines;
    this.#namespace = namespace;
    this.#onMet = onMet;
    this.#common = isShared ? null : undefined;
  }

  /** One of that step. `isDurable`: done only when it is on the disks of all servers. */
  async ask(step: number, isDurable: boolean): Promise<void> {
    const request = { op: 'checkpoint', step, isDurable, common: this.#common };
    const answers = await this.#askAll(request).catch((error: unknown) => {
      // This one is taken all the same where an earlier one is reported.
      const isEarlier = error instanceof UsageError && (error.facts.step as number) < step;
      this.#asked = isEarlier ? step : undefined;
      throw error;
    });
    this.#asked = isDurable ? undefined : step;
    if (this.#common === undefined) return;
    const [first = [], ...others] = answers.map(({ kept }) =>
      Array.isArray(kept) ? (kept as number[]) : [],
    );
    const common = first.filter((one) => others.every((list) => list.includes(one)));
    if (common.length > 0) this.#common = Math.max(this.#common ?? 0, ...common);
  }

  /** Done when all that were asked for are on the disks. */
  async written(): Promise<void> {
    const asked = this.#asked;
    try {
      await this.#askAll({ op: 'checkpoints-written', asked });
    } finally {
      // Nothing is reported twice.
      if (this.#asked === asked) this.#asked = undefined;
    }
  }

  /** All have gone back to this one; undefined: to the beginning, where there is none. */
  wentBackTo(step: number | undefined): void {
    this.#asked = undefined;
    if (this.#common !== undefined) this.#common = step ?? null;
  }

  /** A service that keeps checkpoints on some servers only is none that keeps none. */
  async #askAll(request: object): Promise<readonly Header[]> {
    const lines = this.#lines;
    const noneKept = (error: TributaryError) => {
      if (error.code !== 'NO_CHECKPOINTS') throw error;
      return error;
    };
    // Whoever asks again after a failure must find no core that still has to hear of it. Going back
    // ends what the others wait for, which may be this worker.
    const asked = lines.map(async (line) => {
      const answer = await line.request(request);
      this.#onMet();
      return answer;
    });
    const answers = await allAnswered(asked.map((answer) => answer.catch(noneKept)));
    const without = answers.filter((one) => one instanceof UsageError);
    if (without.length === 0) return answers as Header[];
    if (without.length === lines.length) throw without[0]!;
    throw new UsageError(
      'CHECKPOINT_NOT_WRITTEN',
      `${without.length} of ${lines.length} cores keep no checkpoints of '${this.#namespace}', the others do; give all servers a folder`,
      { namespace: this.#namespace },
      without[0],
    );
  }
}
