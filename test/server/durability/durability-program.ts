/** A process that writes checkpoints or appends pushes until it is killed, and says on its output what is safe. */
import { writeSync } from 'node:fs';
import { systemFiles } from '../../../src/base/index.ts';
import { listLogs, LogReplay, PushLog, ServerCheckpoints } from '../../../src/server/durability/index.ts';
import { systemServerHost } from '../../../src/server/server-host.ts';
import { FIRST, samplePush, sampleState } from './samples.ts';

const [role, folder = '', size = '0'] = process.argv.slice(2);

/** Blocks until the line is with the reader's system, even if the reader is slow. */
function say(line: string | number): void {
  for (;;) {
    try {
      return void writeSync(1, `${line}\n`);
    } catch (error) {
      if ((error as NodeJS.ErrnoException).code !== 'EAGAIN') throw error;
      Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, 1);
    }
  }
}

if (role === 'checkpoints') {
  const checkpoints = await ServerCheckpoints.open({ host: systemServerHost, folder });
  for (let step = ((await checkpoints.list()).at(-1) ?? 0) + 1; ; step++) {
    await checkpoints.write(step, sampleState(step, Number(size)));
    say(step);
  }
} else if (role === 'log') {
  const logged = listLogs(systemFiles, folder, 'core-0').flatMap(({ path }) => [
    ...new LogReplay(systemFiles, path),
  ]);
  const log = new PushLog({ files: systemFiles, folder, name: 'core-0', origin: FIRST });
  for (let index = logged.length; ; index++) {
    log.append(samplePush(index));
    say(index + 1);
  }
} else if (role === 'full') {
  // Files of this process cannot grow beyond a limit: writes fail in the middle.
  const log = new PushLog({ files: systemFiles, folder, name: 'core-0', origin: FIRST });
  const long = { worker: 0, key: 'k', step: 2, samples: 1, kind: 'dense' } as const;
  log.append(samplePush(0));
  try {
    log.append({ ...long, pieces: [{ start: 0, values: new Float32Array(Number(size)) }] });
  } catch (error) {
    say((error as { code: string }).code);
  }
  log.append(samplePush(1));
  const checkpoints = await ServerCheckpoints.open({ host: systemServerHost, folder });
  await checkpoints.write(1, sampleState(1, 64));
  await checkpoints
    .write(2, sampleState(2, Number(size)))
    .catch((error: unknown) => say((error as { code: string }).code));
  await checkpoints.close();
}
