/**
 * A process of the tests: joins the cluster and does what its first argument says. It prints one line of JSON for each
 * thing that it has seen; the test waits for those.
 */
import { once } from 'node:events';
import { hostIdentity, Membership } from '../../src/cluster/index.ts';

const [role, scheduler, secret, rank] = process.argv.slice(2) as [string, string, string, string | undefined];
const say = (what: string, value: unknown = null) => console.log(JSON.stringify({ what, value }));

const membership = await Membership.join({
  scheduler,
  secret,
  title: `process ${process.pid}`,
  host: hostIdentity(),
  address: (localAddress) => ({ localAddress }),
  wantedRank: rank === undefined ? undefined : Number(rank),
});
say('joined', membership.member);

if (role === 'stay') {
  setInterval(() => undefined, 1000);
} else if (role === 'exit') {
  process.exit(0);
} else if (role === 'leave') {
  await membership.leave();
} else if (role === 'block') {
  const told = once(membership, 'left');
  // Waiting for an event does not keep a process alive.
  const alive = setInterval(() => undefined, 1000);
  // From here the main thread runs nothing but this loop until the shared view changes.
  const deadline = performance.now() + 20_000;
  while (membership.lostMembers().length === 0 && performance.now() < deadline) {
    membership.liveness.waitForChange(membership.epoch, 100);
  }
  say('lost', membership.lostMembers());
  say('left', (await told)[0]);
  clearInterval(alive);
  say('world', await membership.regroup());
  await membership.leave();
} else if (role === 'deaf') {
  // Blocks far longer than a silent member would be let live; the thread's heartbeats must go on.
  Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, 1500);
  say('awake', membership.lostMembers());
  await membership.leave();
}
// 'end' has nothing more to do, and being a member alone must not keep a process alive.
