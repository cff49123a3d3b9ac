/** What a process of another user gets: which host it takes itself for, and whether it can make a segment or attach one. */
import { hostIdentity } from '../../src/cluster/index.ts';
import { defaultSegmentDirectory, SharedSpace } from '../../src/memory/index.ts';

const [attached, directory] = process.argv.slice(2);
const space = SharedSpace.create({ maxBytes: 2 ** 20 });

function attempt(act: () => void): string {
  try {
    act();
    return 'done';
  } catch (error) {
    return `${(error as { code?: string }).code}: ${(error as Error).message}`;
  }
}

console.log(
  JSON.stringify({
    directory: defaultSegmentDirectory(),
    host: hostIdentity(),
    create: attempt(() => space.createSegment(`neighbour-${process.pid}`, 64).close()),
    attach: attempt(() => space.attachSegment(attached!, { directory: directory! }).close()),
  }),
);
