/**
 * How much of the processors' time the hypervisor gave to other machines while something was measured: on a rented machine the first
 * question to any figure. Known on Linux only. Invariant: says nothing rather than something wrong.
 */
import { readFileSync } from 'node:fs';

/** Of all processors, in ticks since the start of the machine. */
interface Ticks {
  readonly stolen: number;
  readonly all: number;
}

/** Below this nobody's figures are wrong by it. */
const WORTH_A_NOTE = 0.02;
const STOLEN = 7;
/** What follows is counted among the first ones already. */
const COLUMNS = 8;

export class StolenTime {
  readonly #before = readTicks();

  /** The share since this was made; undefined where it is not known. */
  share(): number | undefined {
    const now = readTicks();
    if (!now || !this.#before || now.all === this.#before.all) return undefined;
    return (now.stolen - this.#before.stolen) / (now.all - this.#before.all);
  }

  /** For the notes of a benchmark. */
  notes(): string[] {
    const share = this.share() ?? 0;
    if (share < WORTH_A_NOTE) return [];
    return [
      `The hypervisor took ${Math.round(100 * share)} % of the processors' time while this was measured; work in step waits for whoever it was taken from.`,
    ];
  }
}

function readTicks(): Ticks | undefined {
  try {
    return parseTicks(readFileSync('/proc/stat', 'utf8'));
  } catch {
    return undefined;
  }
}

/** From the text of /proc/stat. */
export function parseTicks(text: string): Ticks | undefined {
  const numbers = /^cpu +([\d ]+)$/m.exec(text)?.[1]?.split(' ').map(Number).slice(0, COLUMNS);
  if (numbers?.length !== COLUMNS) return undefined;
  return { stolen: numbers[STOLEN]!, all: numbers.reduce((sum, one) => sum + one, 0) };
}
