/**
 * A checkpoint thread that hangs in a call of the system and is given up, and what becomes of the
 * call when the system goes on with it, after another thread has taken its place.
 */
import { mkdtempSync, readdirSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, beforeEach, expect, it } from 'vitest';
import type { Clock } from '../../../src/base/index.ts';
import type { LockableFiles } from '../../../src/memory/index.ts';
import { CheckpointDesk } from '../../../src/server/durability/checkpoint-desk.ts';
import type {
  Answer,
  CheckpointThreadData,
  Question,
} from '../../../src/server/durability/checkpoint-desk.ts';
import { ServerCheckpoints } from '../../../src/server/durability/index.ts';
import { systemServerHost } from '../../../src/server/server-host.ts';
import type { ThreadLine } from '../../../src/server/server-host.ts';
import { OneThreadHost } from '../one-thread-host.ts';
import { isSame, sampleState } from './samples.ts';

/** One of its threads hangs when it renames the next file. */
class HangingHost extends OneThreadHost {
  override readonly clock: Clock;
  readonly #deadlines = new Set<() => void>();
  #hangs: ((goOn: () => void) => void) | undefined;

  constructor() {
    super();
    const after = (_: number, act: () => void) => {
      this.#deadlines.add(act);
      return () => void this.#deadlines.delete(act);
    };
    this.clock = { ...systemServerHost.clock, after };
  }

  /** Settles when it hangs, with what the system does when it goes on. */
  hang(): Promise<() => void> {
    return new Promise((resolve) => (this.#hangs = resolve));
  }

  /** The deadlines of all that is under way are over. */
  giveUp(): void {
    for (const act of [...this.#deadlines]) act();
  }

  override startCheckpoints(data: CheckpointThreadData): ThreadLine<Answer, Question> {
    let isHung = false;
    const { files } = this;
    const own: LockableFiles = {
      ...files,
      rename: (from, to) => {
        const hang = this.#hangs;
        if (hang === undefined) return files.rename(from, to);
        this.#hangs = undefined;
        isHung = true;
        hang(() => files.rename(from, to));
        throw new Error('it does not return');
      },
      remove: (path) => {
        if (isHung) throw new Error('it does not return');
        files.remove(path);
      },
    };
    const desk = new CheckpointDesk({ files: own, randomHex: this.randomHex }, data);
    let hear: (answer: Answer) => void = () => undefined;
    return {
      ...super.startCheckpoints(data),
      post: (question) =>
        void setImmediate(() => {
          if (!isHung) desk.take(question, (answer) => void (isHung || hear(answer)));
        }),
      onMessage: (take) => void (hear = take),
    };
  }
}

let folder: string;
let host: HangingHost;
let checkpoints: ServerCheckpoints;

beforeEach(async () => {
  folder = mkdtempSync(join(tmpdir(), 'tributary-hung-'));
  host = new HangingHost();
  checkpoints = await ServerCheckpoints.open({ host, folder });
  await checkpoints.write(3, sampleState(3, 64));
});

afterEach(async () => {
  await checkpoints.close();
  rmSync(folder, { recursive: true, force: true });
});

/** Hangs when it is to give step 5 its name, and is given up; returns what the system does in the end. */
async function writeHangs(): Promise<() => void> {
  const hangs = host.hang();
  const written = checkpoints.write(5, sampleState(5, 64));
  const refused = expect(written).rejects.toMatchObject({ code: 'TIMEOUT' });
  const goOn = await hangs;
  host.giveUp();
  await refused;
  return () => {
    try {
      goOn();
    } catch {
      // The thread hears of it, and is gone.
    }
  };
}

it('does not bring back what training has gone back behind', async () => {
  const goOn = await writeHangs();
  await checkpoints.goBackTo(3);
  goOn();
  expect(await checkpoints.list()).toEqual([3]);
});

it('does not replace what was written since', async () => {
  const goOn = await writeHangs();
  await checkpoints.write(5, sampleState(8, 64));
  goOn();
  expect(isSame(await checkpoints.read(5), sampleState(8, 64))).toBe(true);
});

it('leaves nothing of itself', async () => {
  const goOn = await writeHangs();
  await checkpoints.list();
  goOn();
  expect(readdirSync(folder).sort()).toEqual(['server.lock', 'step-000000000003.checkpoint']);
});
