/** Checkpoints of one core: who waits for which of them to be on the disk. */
import { describe, expect, it } from 'vitest';
import { CoreCheckpoints } from '../../src/server/cores/core-checkpoints.ts';

/** A disk that writes when it is told to. */
function slowDisk() {
  const writing = new Map<number, (kept: readonly number[]) => void>();
  let needsAnother = false;
  const checkpoints = new CoreCheckpoints('a', {
    get needsAnother() {
      return needsAnother;
    },
    checkpoint: (step, _common, written) => void writing.set(step, written),
    refuse: () => undefined,
    announce: () => undefined,
  });
  const heard: string[] = [];
  return {
    heard,
    take: (worker: number, step: number) =>
      checkpoints.take(
        { worker, step, isDurable: false },
        () => undefined,
        () => undefined,
      ),
    /** Takes one that is to be on the disk. */
    keep: (worker: number, step: number) =>
      checkpoints.take(
        { worker, step, isDurable: true },
        () => heard.push(`${worker} has ${step}`),
        ({ message }) => heard.push(message),
      ),
    breakLog: () => (needsAnother = true),
    settle: (worker: number) =>
      checkpoints.settle(
        worker,
        () => heard.push(`${worker} settled`),
        ({ code }) => heard.push(`${worker} ${code}`),
      ),
    write: (step: number) => {
      const written = writing.get(step)!;
      writing.delete(step);
      written([step]);
    },
  };
}

describe('a worker that waits until its checkpoints are written', () => {
  it('is answered at once if there are none', () => {
    const { settle, heard } = slowDisk();
    settle(0);
    expect(heard).toEqual(['0 settled']);
  });

  it('waits for all that were asked for before, also those that wait for the disk', () => {
    const { take, settle, write, heard } = slowDisk();
    for (const step of [1, 2, 3]) take(0, step);
    settle(0);
    write(1);
    write(2);
    expect(heard).toEqual([]);
    write(3);
    expect(heard).toEqual(['0 settled']);
  });

  it('does not wait for those that another worker asks for afterwards', () => {
    const { take, settle, write, heard } = slowDisk();
    take(0, 1);
    settle(0);
    for (let step = 2; step < 10; step++) {
      take(1, step);
      write(step - 1);
    }
    expect(heard).toEqual(['0 settled']);
  });
});

describe('a worker whose pushes are refused until a checkpoint is written', () => {
  it('is not answered by one that is written already', () => {
    const { keep, write, breakLog, heard } = slowDisk();
    keep(0, 5);
    write(5);
    keep(1, 5);
    breakLog();
    keep(2, 5);
    keep(2, 6);
    write(6);
    expect(heard).toEqual([
      '0 has 5',
      '1 has 5',
      expect.stringContaining("step 5 of 'a' is on the disk already") as string,
      '2 has 6',
    ]);
  });
});
