/** A rank whose costs cannot be measured, since the other one is killed as soon as it has joined. Not a test itself. */
import { joinCluster } from '../../src/launcher/index.ts';
import { SharedSpace } from '../../src/memory/index.ts';
import { say, settings, untilTold } from '../collectives/rank-program-start.ts';
import { segmentFiles } from '../support/segment-files.ts';

const { scheduler, secret } = settings;
const space = SharedSpace.create({ maxBytes: 64 * 2 ** 20 });
const dies = settings['dies'] === true;
const options = { scheduler, secret, space, transport: 'shm', deadlineMs: 30_000 } as const;
const error = await joinCluster({ ...options, measure: !dies }).then(
  () => undefined,
  (reason: { code: string }) => reason.code,
);
if (dies) {
  say('joined');
  await untilTold('never');
}
const segments = segmentFiles().filter((name) => name.includes(`${process.pid}`));
say('rejected', { error, segments });
// Nothing of the cluster may keep the process: it ends by itself.
process.stdin.unref();
