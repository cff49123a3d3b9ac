/**
 * The other process of the tests: attaches or creates a segment and does what its first argument says.
 * It prints one line when it is ready and answers through shared memory or its exit code.
 */
import { futexWait, futexWake, SharedSpace } from '../../src/memory/index.ts';

const [role, name, directory] = process.argv.slice(2) as [string, string, string];
const space = SharedSpace.create({ maxBytes: 64 * 2 ** 20 });

if (role === 'own') {
  const segment = space.createSegment(name, 4096, { directory });
  segment.allocate('int32', 1).view[0] = 42;
  console.log('ready');
  setInterval(() => undefined, 1000);
} else if (role === 'make large ones') {
  const large = SharedSpace.create({ maxBytes: 2 ** 29 });
  for (;;) large.createSegment(name, 2 ** 28, { directory }).close();
} else {
  const segment = space.attachSegment(name, { directory });
  const words = segment.allocate('int32', 16);
  const values = segment.allocate('float32', 8);
  if (role === 'double') {
    for (let i = 0; i < values.length; i++) values.view[i]! *= 2;
    Atomics.store(words.view, 0, 1);
  } else if (role === 'count') {
    for (let i = 0; i < 20_000; i++) Atomics.add(words.view, 1, 1);
  } else if (role === 'sleep') {
    console.log('ready');
    // The words never change, so that only a wake can end either wait.
    if (futexWait(words, 2, 0, 30_000) !== 'woken') process.exit(1);
    const deadline = performance.now() + 20_000;
    while (futexWake(words, 3, 1) === 0 && performance.now() < deadline);
  }
  segment.close();
}
