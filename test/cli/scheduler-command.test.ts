/** `tributary scheduler` as a process of its own: members that join by the secret in its file, its end and its errors. */
import { once } from 'node:events';
import { readdirSync, readFileSync, statSync, writeFileSync } from 'node:fs';
import { createServer, type AddressInfo } from 'node:net';
import { join } from 'node:path';
import { describe, expect, test } from 'vitest';
import { Membership } from '../../src/cluster/index.ts';
import { temporaryFolders } from '../data/temporary-folder.ts';
import { OTHER_SECRET, SECRET } from '../support/secrets.ts';
import { run } from './fake-io.ts';
import { parse, start } from './program.ts';

const folder = temporaryFolders();

function joinAs(title: string, scheduler: string, secret: string): Promise<Membership> {
  return Membership.join({ scheduler, secret, title, host: 'h', address: {}, joinTimeoutMs: 20_000 });
}

describe('tributary scheduler', () => {
  test('brings members together that know the secret in its file, and no others', async () => {
    const cwd = folder();
    const program = start(['scheduler', '--json', '--port', '0', '--members', '2'], cwd);
    const listening = await program.waitFor('listening');
    const path = join(cwd, 'cluster.secret');
    expect(listening).toMatchObject({ members: 2, tls: false, secretFile: path, isNewSecret: true });
    expect(statSync(path).mode & 0o777).toBe(0o600);
    const address = listening['scheduler'] as string;
    const secret = readFileSync(path, 'utf8').trim();

    await expect(joinAs('stranger', address, OTHER_SECRET)).rejects.toMatchObject({ code: 'REFUSED' });
    const members = await Promise.all(['one', 'two'].map((title) => joinAs(title, address, secret)));
    expect(members.map(({ member }) => member).sort()).toEqual([0, 1]);
    expect(await program.waitFor('formed')).toMatchObject({ members: [0, 1] });
    await members[0]!.leave();
    expect(await program.waitFor('left')).toMatchObject({ reason: 'closed' });

    const lost = once(members[1]!, 'scheduler-lost');
    program.child.kill('SIGTERM');
    const { code, lines, stderr } = await program.ended;
    await lost;
    await members[1]!.leave();
    expect(code).toBe(143);
    const types = lines.map((line) => parse(line).type);
    expect(types[0]).toBe('listening');
    expect(types.at(-1)).toBe('stopped');
    expect(new Set(types)).toEqual(new Set(['listening', 'refused', 'joined', 'formed', 'left', 'stopped']));
    expect(lines.join('\n') + stderr).not.toContain(secret);
  });

  test('says in words where it listens, and warns where others reach it without TLS', async () => {
    const cwd = folder();
    writeFileSync(join(cwd, 'mine'), `${SECRET}\n`, { mode: 0o600 });
    const args = [
      'scheduler',
      '--port',
      '0',
      '--members',
      '3',
      '--secret-file',
      'mine',
      '--address',
      '0.0.0.0',
    ];
    const { code, stdout, stderr } = await run(args, { cwd, signal: AbortSignal.abort('SIGINT') });
    expect(code).toBe(130);
    expect(stdout).toMatch(
      /^Listening at 0\.0\.0\.0:\d+ for 3 members; the secret is in .*mine\.\nStopped by SIGINT\.\n$/,
    );
    expect(stderr).toMatch(/^Warning: others can reach 0\.0\.0\.0, and there is no TLS: /);
    expect(stdout + stderr).not.toContain(SECRET);
  });

  test.each([
    [[], 'needs --members N'],
    [['--members', '0'], 'needs --members N'],
    [['--members', '2', '--port', '70000'], '0 to 65535 for --port'],
    [['--members', '2', '--tls-key', 'key.pem'], '--tls-key and --tls-cert together'],
  ])('refuses %j, and does nothing', async (args, fault) => {
    const cwd = folder();
    const { code, stderr } = await run(['scheduler', ...args], { cwd });
    expect(code).toBe(2);
    expect(stderr).toMatch(/^error \[INVALID_COMMAND\]: /);
    expect(stderr).toContain(fault);
    expect(readdirSync(cwd)).toEqual([]);
  });

  test('says which port is taken, and which file is missing', async () => {
    const cwd = folder();
    const taken = createServer().listen(0, '127.0.0.1');
    await once(taken, 'listening');
    const { port } = taken.address() as AddressInfo;
    const busy = await run(['scheduler', '--members', '2', '--port', String(port)], { cwd });
    taken.close();
    expect(busy.code).toBe(2);
    expect(busy.stderr).toContain(`port ${port}: listen EADDRINUSE`);
    const files = ['--tls-key', 'key.pem', '--tls-cert', 'cert.pem'];
    const missing = await run(['scheduler', '--members', '2', '--port', '0', ...files], { cwd });
    expect(missing.code).toBe(2);
    expect(missing.stderr).toMatch(/^error \[FILE_NOT_FOUND\]: The TLS key .*key\.pem cannot be read/);
  });
});
