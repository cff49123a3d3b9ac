/**
 * A scheduler in a process of its own, for clusters that the process of the test cannot reach by the network. Arguments:
 * the address to listen at, the number of members, the secret. Prints its 'host:port' and ends with its input.
 */
import { Scheduler } from '../../src/cluster/index.ts';

const [host, size, secret] = process.argv.slice(2) as [string, string, string];
const scheduler = await Scheduler.start({ host, size: Number(size), secret });
console.log(scheduler.address);
process.stdin.resume().once('end', () => void scheduler.close());
