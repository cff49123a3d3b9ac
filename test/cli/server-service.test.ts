/**
 * `tributary server service` as its users run it: against servers that are processes of their own,
 * which are killed after they have answered, and what the commands say and refuse.
 */
import { chmodSync, existsSync, readdirSync, readFileSync, statSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { describe, expect, test } from 'vitest';
import { createServiceCommand } from '../../src/cli/commands/server-service.ts';
import { RemoteStore } from '../../src/kvstore/index.ts';
import { hasSharedMemory } from '../../src/memory/index.ts';
import { temporaryFolders } from '../data/temporary-folder.ts';
import { run } from './fake-io.ts';
import { start, type Program } from './program.ts';

const folder = temporaryFolders();
const SECRET = ['--admin-secret-file', 'admin.secret'];

interface Running {
  readonly program: Program;
  readonly address: string;
  readonly port: number;
}

async function serve(cwd: string, ...args: string[]): Promise<Running> {
  const program = start(['server', '--json', ...SECRET, ...args], cwd);
  const { server, port } = await program.waitFor('listening');
  return { program, address: server as string, port: port as number };
}

async function stop({ program }: Running): Promise<string[]> {
  program.child.kill('SIGTERM');
  return (await program.ended).lines;
}

async function kill({ program }: Running): Promise<void> {
  program.child.kill('SIGKILL');
  expect((await program.ended).signal).toBe('SIGKILL');
}

interface Listed {
  readonly service: string;
  readonly [field: string]: unknown;
}

async function list(cwd: string, { address }: Running): Promise<readonly Listed[]> {
  const { code, stdout } = await run(
    ['server', 'service', 'list', '--server', address, ...SECRET, '--json'],
    { cwd },
  );
  expect(code).toBe(0);
  const [{ services }] = (JSON.parse(stdout) as { servers: [{ services: Listed[] }] }).servers;
  return services;
}

describe.skipIf(!hasSharedMemory())('tributary server service', () => {
  test('keeps what it has answered when servers are killed right after it, and workers go on', async () => {
    const cwd = folder();
    const first = await serve(cwd, '--port', '0', '--folder', 'kept-0');
    const second = await serve(cwd, '--port', '0', '--folder', 'kept-1');
    const servers = `${first.address},${second.address}`;
    const at = ['--server', servers, ...SECRET];
    const options = ['--workers', '1', '--lost-workers', 'wait', '--grace-ms', '700'];
    const created = await run(['server', 'service', 'create', 'line', ...at, ...options], { cwd });
    await Promise.all([kill(first), kill(second)]);
    const file = join(cwd, 'nonces', 'line.nonce');
    expect(created).toEqual({
      code: 0,
      stdout: [
        `Service line was created at ${first.address}; checkpoints in ${join(cwd, 'kept-0', 'line')} there.`,
        `Service line was created at ${second.address}; checkpoints in ${join(cwd, 'kept-1', 'line')} there.`,
        `Its nonce is in ${file}.\n`,
      ].join('\n'),
      stderr: '',
    });
    expect(statSync(file).mode & 0o777).toBe(0o600);
    const nonce = readFileSync(file, 'utf8').trim();
    expect(nonce).toMatch(/^[0-9a-f]{64}$/);

    const again = [
      await serve(cwd, '--port', String(first.port), '--folder', 'kept-0'),
      await serve(cwd, '--port', String(second.port), '--folder', 'kept-1'),
    ];
    expect(await again[0]!.program.waitFor('kept')).toEqual({ type: 'kept', service: 'line' });
    const store = await RemoteStore.connect({
      ...{ servers: servers.split(','), access: { namespace: 'line', nonce }, worker: 0, workers: 1 },
      updater: 'accumulate',
    });
    const gradient = new Float32Array(40_000).fill(2);
    await store.init({ key: 'w', value: new Float32Array(40_000) });
    const into = new Float32Array(40_000);
    await store.pushpull({ key: 'w', gradient, into });
    expect([...new Set(into)]).toEqual([2]);
    expect(await list(cwd, again[0]!)).toMatchObject([
      { service: 'line', isCreated: true, workers: 1, mode: 'synchronous', connected: 1, steps: 1 },
    ]);
    await store.close();

    const ended = await run(['server', 'service', 'end', 'line', ...at, '--json'], { cwd });
    await Promise.all(again.map(kill));
    expect(JSON.parse(ended.stdout)).toEqual({
      ...{ type: 'ended', service: 'line' },
      servers: [0, 1].map((i) => ({
        server: servers.split(',')[i],
        wasThere: true,
        folder: join(cwd, `kept-${i}`, 'line'),
      })),
    });
    const last = await serve(cwd, '--port', String(first.port), '--folder', 'kept-0');
    expect(await list(cwd, last)).toEqual([]);
    for (const line of await stop(last))
      expect(line).not.toContain(readFileSync(join(cwd, 'admin.secret'), 'utf8').trim());
  });

  test('names the server that did not answer, and the same command does the rest', async () => {
    const cwd = folder();
    const one = await serve(cwd, '--port', '0');
    const other = await serve(cwd, '--port', '0');
    const create = () =>
      run(
        ['server', 'service', 'create', 'a', '--server', one.address, '--server', other.address, ...SECRET],
        { cwd },
      );
    await kill(other);
    const failed = await create();
    expect(failed.code).toBe(1);
    expect(failed.stderr).toMatch(/^error \[UNREACHABLE\]: /);
    expect(failed.stderr).toContain(`the server at ${other.address} cannot be reached`);
    expect(failed.stderr).toContain(`nothing is wrong at ${one.address}`);
    expect(existsSync(join(cwd, 'nonces'))).toBe(false);
    const alone = await run(['server', 'service', 'create', 'a', '--server', one.address, ...SECRET], {
      cwd,
    });
    expect(alone.code).toBe(0);
    const back = await serve(cwd, '--port', String(other.port));
    const { code, stdout } = await create();
    expect(code).toBe(0);
    expect(stdout).toContain(`Service a was there at ${one.address}; it ends with the server.`);
    expect(stdout).toContain(`Service a was created at ${other.address}; it ends with the server.`);
    expect(await list(cwd, back)).toHaveLength(1);
    await Promise.all([stop(one), stop(back)]);
  });

  test('never writes over the nonce of another service, and creates nothing then', async () => {
    const cwd = folder();
    const server = await serve(cwd, '--port', '0', '--service', 'given');
    const at = ['--server', server.address, ...SECRET];
    const taken = join(cwd, 'nonces', 'given.nonce');
    const held = readFileSync(taken, 'utf8');
    const refused = await run(['server', 'service', 'create', 'a', ...at, '--nonce-file', taken], { cwd });
    expect(refused.code).toBe(2);
    expect(refused.stderr).toContain(`error [OUTPUT_EXISTS]: ${taken} holds another nonce`);
    expect(readFileSync(taken, 'utf8')).toBe(held);
    expect((await list(cwd, server)).map(({ service }) => service)).toEqual(['given']);
    const given = await run(['server', 'service', 'create', 'given', ...at], { cwd });
    expect(given).toMatchObject({ code: 1, stdout: '' });
    expect(given.stderr).toContain('error [SERVICE_EXISTS]');
    const table = await run(['server', 'service', 'list', ...at], { cwd });
    expect(table.stdout).toMatch(
      /service +from +workers +connected +mode +bytes +of at most +steps\n +given +start +- +0 +- +\d+ +\d+ +0\n$/,
    );
    await stop(server);
  });

  test('is refused with another secret than that of the server, and the secret is in no output', async () => {
    const cwd = folder();
    const server = await serve(cwd, '--port', '0');
    const other = 'b7'.repeat(8) + '0123456789abcdef'.repeat(3);
    writeFileSync(join(cwd, 'other.secret'), other, { mode: 0o600 });
    const { code, stderr } = await run(
      ['server', 'service', 'list', '--server', server.address, '--admin-secret-file', 'other.secret'],
      { cwd },
    );
    expect(code).toBe(1);
    expect(stderr).toContain('error [REFUSED]');
    expect(stderr).toContain('--admin-secret-file');
    const lines = await stop(server);
    expect(lines.join('\n')).toContain("does not know the administrator's secret");
    expect(lines.join('\n') + stderr).not.toContain(other);
  });

  test('of a server says when it starts with services that it cannot offer, or that are given twice', async () => {
    const cwd = folder();
    const server = await serve(cwd, '--port', '0', '--folder', 'kept');
    await run(['server', 'service', 'create', 'a', '--server', server.address, ...SECRET], { cwd });
    await stop(server);
    const without = await run(['server', '--port', '0', '--folder', 'kept', '--service', 'b'], { cwd });
    expect(without.code).toBe(2);
    expect(without.stderr).toContain('cannot offer them without --admin-secret-file');
    const twice = await run(['server', '--port', '0', '--folder', 'kept', '--service', 'a', ...SECRET], {
      cwd,
    });
    expect(twice.code).toBe(2);
    expect(twice.stderr).toContain('leave --service a out, or end it first');
  });
});

describe('what tributary server service says', () => {
  const server = ['--server', '127.0.0.1:1'];

  test.each([
    [['create'], 'needs <NAME>'],
    [['create', 'a'], 'needs --server HOST:PORT'],
    [['create', 'a', ...server], 'needs --admin-secret-file FILE'],
    [['create', '../a', ...server, ...SECRET], 'no use for the service "../a"'],
    [['create', 'a', ...server, ...SECRET, '--workers', '0'], 'above 0 for --workers'],
    [['create', 'a', ...server, ...SECRET, '--max-bytes', '0'], 'above 0 for --max-bytes'],
    [['create', 'a', ...server, ...SECRET, '--max-log-bytes', '0'], 'above 0 for --max-log-bytes'],
    [['create', 'a', ...server, ...SECRET, '--durability', 'tape'], 'process, disk for --durability'],
    [['create', 'a', '--server', '127.0.0.1:1,127.0.0.1:1', ...SECRET], 'got the server 127.0.0.1:1 twice'],
    [['end', 'a', ...server, ...SECRET, '--tls-ca', 'ca.pem'], '--tls-key, --tls-cert and --tls-ca together'],
    [['list', 'a'], 'takes no operands'],
    [['list'], 'needs --server HOST:PORT'],
  ])('of %j is what is wrong, and nothing is written', async (args, fault) => {
    const cwd = folder();
    const { code, stdout, stderr } = await run(['server', 'service', ...args], { cwd });
    expect({ code, stdout }).toEqual({ code: 2, stdout: '' });
    expect(stderr).toMatch(/^error \[INVALID_COMMAND\]: tributary server service /);
    expect(stderr).toContain(fault);
    expect(readdirSync(cwd)).toEqual([]);
  });

  test('of a word that is none of its commands names them', async () => {
    const { code, stderr } = await run(['server', 'service', 'remove', 'a']);
    expect(code).toBe(2);
    for (const name of ['create', 'end', 'list']) expect(stderr).toContain(name);
  });

  test.each([
    ['is missing', undefined, 'FILE_NOT_FOUND', 2],
    ['is empty', '\n', 'INVALID_DATA', 1],
    ['can be guessed', 'hunter2', 'INVALID_ARGUMENT', 2],
  ])(
    'of a secret that %s is one line, and the secret is not made',
    async (_what, content, code, exitCode) => {
      const cwd = folder();
      if (content !== undefined) writeFileSync(join(cwd, 'admin.secret'), content, { mode: 0o600 });
      const result = await run(['server', 'service', 'list', ...server, ...SECRET], { cwd });
      expect(result.code).toBe(exitCode);
      expect(result.stderr).toMatch(new RegExp(`^error \\[${code}\\]: .*\n$`));
      if (content === undefined) expect(readdirSync(cwd)).toEqual([]);
      else expect(result.stderr).not.toContain('hunter2');
    },
  );

  test('of an address that is none, and of a secret that others can read', async () => {
    const cwd = folder();
    writeFileSync(join(cwd, 'admin.secret'), '0123456789abcdef'.repeat(4));
    chmodSync(join(cwd, 'admin.secret'), 0o644);
    const { code, stderr } = await run(['server', 'service', 'list', '--server', 'nowhere', ...SECRET], {
      cwd,
    });
    expect(code).toBe(2);
    expect(stderr).toContain("'nowhere' is no address of a server");
    expect(stderr).toContain('Warning: ');
  });
});

test('docs/servers.md names every option of creating a service', () => {
  const page = readFileSync(new URL('../../docs/servers.md', import.meta.url), 'utf8');
  for (const option of Object.keys(createServiceCommand.options)) expect(page).toContain(`--${option}`);
});
