/** Two hosts of two workers each, which have a network between them and no memory in common: each host is a rack. */
import { spawn } from 'node:child_process';
import type { ChildProcess } from 'node:child_process';
import { once } from 'node:events';
import { text } from 'node:stream/consumers';
import { fileURLToPath } from 'node:url';
import { afterEach, describe, expect, it } from 'vitest';
import { component } from '../support/components.ts';
import { createHosts } from '../../src/bench/hosts.ts';
import type { Host, Hosts } from '../../src/bench/hosts.ts';
import type { RackLine } from './rack-program.ts';
import { programOf } from '../support/test-program.ts';
import { SECRET } from '../support/secrets.ts';

const DEADLINE_MS = 40_000;
const pathOf = (path: string) => fileURLToPath(new URL(path, import.meta.url));

describe.skipIf(!component('iproute2').present)('hosts as racks', () => {
  let net: Hosts | undefined;
  const children: ChildProcess[] = [];
  afterEach(async () => {
    for (const child of children.splice(0)) {
      child.stdin?.end();
      if (child.exitCode === null && child.signalCode === null) await once(child, 'exit');
    }
    net?.close();
  });
  const start = (host: Host, program: string, ...programArguments: readonly string[]) => {
    const command = host.command(process.execPath, ...programOf(program), ...programArguments);
    const child = spawn(...command, { stdio: 'pipe', timeout: DEADLINE_MS, killSignal: 'SIGKILL' });
    children.push(child);
    return child;
  };

  it('reduce inside hosts first, and give all workers the sum', async () => {
    net = createHosts({ count: 2 });
    const places = net.hosts.flatMap((host) => [host, host]);
    const hub = net.switch;
    const size = String(places.length);
    const scheduler = start(hub, pathOf('../system/namespaces-scheduler.ts'), hub.address, size, SECRET);
    const [at] = (await once(scheduler.stdout, 'data')) as [Buffer];
    const said = await Promise.all(
      places.map(async (host, rank) => {
        const program = pathOf('./rack-program.ts');
        const child = start(host, program, String(at).trim(), SECRET, String(rank), host.address);
        const [output, errors] = await Promise.all([text(child.stdout), text(child.stderr)]);
        expect(output, errors).not.toBe('');
        return JSON.parse(output) as RackLine;
      }),
    );
    expect(said.map(({ plan }) => plan.choice)).toEqual(places.map(() => 'hierarchical'));
    expect(said.map(({ value }) => value)).toEqual(places.map(() => 10));
  });
});
