/** `tributary server` as a process of its own: services and nonces by files, training through it, its end and its errors. */
import { execFileSync, spawn, spawnSync } from 'node:child_process';
import { once } from 'node:events';
import {
  chmodSync,
  existsSync,
  mkdirSync,
  readdirSync,
  readFileSync,
  statSync,
  writeFileSync,
} from 'node:fs';
import { connect, createServer, type AddressInfo } from 'node:net';
import { join } from 'node:path';
import { describe, expect, test } from 'vitest';
import { serverCommand } from '../../src/cli/commands/server.ts';
import { RemoteStore, runSteps } from '../../src/kvstore/index.ts';
import { hasSharedMemory } from '../../src/memory/index.ts';
import { segmentPrefix } from '../../src/server/index.ts';
import { temporaryFolders } from '../data/temporary-folder.ts';
import { run } from './fake-io.ts';
import { parse, start, type Program } from './program.ts';
import { segmentFiles } from '../support/segment-files.ts';

const folder = temporaryFolders();
const hasOpenssl = spawnSync('openssl', ['version']).status === 0;

interface Running {
  readonly program: Program;
  readonly address: string;
  readonly port: number;
}

async function serve(cwd: string, ...args: string[]): Promise<Running> {
  const program = start(['server', '--json', '--port', '0', ...args], cwd);
  const { server, port } = await program.waitFor('listening');
  return { program, address: server as string, port: port as number };
}

function accessTo(cwd: string, namespace: string) {
  return { namespace, nonce: readFileSync(join(cwd, 'nonces', `${namespace}.nonce`), 'utf8').trim() };
}

/** Ends the server, and proves that nothing of it is left. */
async function stop({ program, port }: Running, cwd: string, services: readonly string[]): Promise<string[]> {
  program.child.kill('SIGTERM');
  const { code, lines, stderr } = await program.ended;
  expect({ code, stderr }).toEqual({ code: 143, stderr: '' });
  expect(parse(lines.at(-1)!)).toEqual({ type: 'stopped', signal: 'SIGTERM' });
  const accesses = services.map((name) => accessTo(cwd, name));
  const own = [
    `tributary-beacon-${program.child.pid}-`,
    ...accesses.map(({ namespace, nonce }) => `tributary-${segmentPrefix(namespace, nonce)}values`),
  ];
  expect(segmentFiles().filter((name) => own.some((prefix) => name.startsWith(prefix)))).toEqual([]);
  expect(await isListening(port)).toBe(false);
  for (const { nonce } of accesses) expect(lines.join('\n')).not.toContain(nonce);
  return lines;
}

function isListening(port: number): Promise<boolean> {
  return new Promise((resolve) => {
    const socket = connect(port, '127.0.0.1');
    socket.once('connect', () => (socket.destroy(), resolve(true))).once('error', () => resolve(false));
  });
}

describe.skipIf(!hasSharedMemory())('tributary server', () => {
  test('serves several services by the nonces in their files, and leaves nothing behind', async () => {
    const cwd = folder();
    const server = await serve(cwd, '--cores', '2', '--service', 'first', '--service', 'second');
    const file = join(cwd, 'nonces', 'first.nonce');
    expect(statSync(file).mode & 0o777).toBe(0o600);
    expect(readdirSync(join(cwd, 'nonces')).sort()).toEqual(['first.nonce', 'second.nonce']);
    const access = accessTo(cwd, 'first');
    expect(access.nonce).not.toBe(accessTo(cwd, 'second').nonce);

    const servers = [server.address];
    const stores = await Promise.all(
      [0, 1].map((worker) => RemoteStore.connect({ servers, access, worker, workers: 2 })),
    );
    const value = new Float32Array(30_000).fill(1);
    await Promise.all(stores.map((store) => store.init({ key: 'w', value })));
    const pulled = await Promise.all(
      stores.map(async (store, rank) => {
        await store.push({ key: 'w', gradient: new Float32Array(value.length).fill(rank + 1) });
        const into = new Float32Array(value.length);
        await store.pull({ key: 'w', into });
        return [...new Set(into)];
      }),
    );
    expect(pulled).toEqual([[3], [3]]);
    const forged = { namespace: 'second', nonce: access.nonce };
    await expect(
      RemoteStore.connect({ servers, access: forged, worker: 0, workers: 1, reconnectTimeoutMs: 500 }),
    ).rejects.toMatchObject({
      code: 'REFUSED',
    });
    expect(await server.program.waitFor('log')).toMatchObject({
      text: expect.stringContaining("does not know the nonce of namespace 'second'") as string,
    });

    await stores[0]!.close();
    const lines = await stop(server, cwd, ['first', 'second']);
    expect(lines.map(parse).slice(0, 3)).toMatchObject([
      { type: 'service', service: 'first', nonceFile: file, isNewNonce: true, folder: null },
      { type: 'service', service: 'second', isNewNonce: true },
      { type: 'listening', address: '127.0.0.1', cores: 2, tls: false, pid: server.program.child.pid },
    ]);
    // The other one was connected to the end; its memory is its own to free.
    await stores[1]!.close();
  });

  test('shares the parameters with another one that was started with the same nonces', async () => {
    const cwd = folder();
    const both = await Promise.all([serve(cwd, '--service', 'a'), serve(cwd, '--service', 'a')]);
    const made = await Promise.all(both.map(({ program }) => program.waitFor('service')));
    expect(made.filter(({ isNewNonce }) => isNewNonce)).toHaveLength(1);
    const store = await RemoteStore.connect({
      ...{ servers: both.map(({ address }) => address), access: accessTo(cwd, 'a'), worker: 0, workers: 1 },
      updater: 'accumulate',
    });
    const keys = ['v', 'w'].map((key) => ({ key, gradient: new Float32Array(20_000).fill(2) }));
    await store.init(keys.map(({ key, gradient }) => ({ key, value: gradient })));
    const pulls = keys.map((one) => ({ ...one, into: new Float32Array(20_000) }));
    await store.pushpull(pulls);
    expect(pulls.map(({ into }) => [...new Set(into)])).toEqual([[4], [4]]);
    await store.close();
    const ends = both.map(({ program }) => (program.child.kill('SIGINT'), program.ended));
    expect((await Promise.all(ends)).map(({ code }) => code)).toEqual([130, 130]);
  });

  test('logs a stranger that does not speak the protocol', async () => {
    const cwd = folder();
    const server = await serve(cwd, '--service', 'a');
    const socket = connect(server.port, '127.0.0.1', () =>
      socket.write('GET / HTTP/1.1\r\n\r\n'.repeat(100)),
    );
    socket.on('error', () => undefined);
    const { text } = await server.program.waitFor('log');
    expect(text).toMatch(/^closed 127\.0\.0\.1:\d+: it /);
    await stop(server, cwd, ['a']);
  });

  test('started again, goes on from its checkpoints with the nonce that it had', async () => {
    const cwd = folder();
    const args = ['--service', 'a', '--folder', 'kept', '--lost-workers', 'wait'];
    const train = async ({ address }: Running, steps: number): Promise<{ first: number; value: number }> => {
      const store = await RemoteStore.connect({
        ...{ servers: [address], access: accessTo(cwd, 'a'), worker: 0, workers: 1, updater: 'accumulate' },
      });
      const into = new Float32Array(10);
      let first = 0;
      await store.init({ key: 'w', value: into });
      await runSteps(store, {
        ...{ steps, checkpointEvery: 1 },
        step: async (step, isFirst) => {
          if (isFirst) first = step;
          await store.pushpull({ key: 'w', gradient: new Float32Array(10).fill(step), into });
        },
      });
      await store.close();
      return { first, value: into[0]! };
    };
    const before = await serve(cwd, ...args);
    expect(await train(before, 3)).toEqual({ first: 1, value: 6 });
    const lines = await stop(before, cwd, ['a']);
    expect(parse(lines[0]!)).toMatchObject({ isNewNonce: true, folder: join(cwd, 'kept', 'a') });
    expect(existsSync(join(cwd, 'kept', 'a'))).toBe(true);

    const after = await serve(cwd, ...args);
    expect(await after.program.waitFor('service')).toMatchObject({ isNewNonce: false });
    expect(await train(after, 5)).toEqual({ first: 4, value: 15 });
    await stop(after, cwd, ['a']);
  });

  test.skipIf(!hasOpenssl)('speaks TLS with the certificates of its files', async () => {
    const cwd = folder();
    const page = readFileSync(new URL('../../docs/servers.md', import.meta.url), 'utf8');
    for (const [command] of page.matchAll(/^openssl .*$/gm))
      execFileSync('openssl', command.split(' ').slice(1), { cwd, stdio: 'ignore' });
    const certificates = ['--tls-key', 'key.pem', '--tls-cert', 'cert.pem', '--tls-ca', 'ca.pem'];
    const server = await serve(cwd, '--service', 'a', ...certificates);
    expect(await server.program.waitFor('listening')).toMatchObject({ tls: true });
    const [key, cert, ca] = ['key', 'cert', 'ca'].map((name) =>
      readFileSync(join(cwd, `${name}.pem`), 'utf8'),
    );
    const options = { servers: [server.address], access: accessTo(cwd, 'a'), worker: 0, workers: 1 };
    const store = await RemoteStore.connect({ ...options, tls: { key: key!, cert: cert!, ca: ca! } });
    const into = new Float32Array(3);
    await store.init({ key: 'w', value: into.fill(2) });
    await store.pushpull({ key: 'w', gradient: into.fill(4), into });
    expect([...into]).toEqual([4, 4, 4]);
    await store.close();
    await expect(RemoteStore.connect({ ...options, reconnectTimeoutMs: 500 })).rejects.toMatchObject({
      code: 'UNREACHABLE',
    });
    await stop(server, cwd, ['a']);
  });

  test('trains by the program in docs/servers.md', async () => {
    const cwd = folder();
    const server = await serve(cwd, '--service', 'mnist', '--folder', 'kept', '--lost-workers', 'wait');
    const page = readFileSync(new URL('../../docs/servers.md', import.meta.url), 'utf8');
    const source = /```ts\n(\/\/ worker\.ts\n[^]*?)```/.exec(page)![1]!;
    const library = new URL('../../src/kvstore/index.ts', import.meta.url).href;
    const replaced = source.replace("'tributary'", `'${library}'`).replace('127.0.0.1:7000', server.address);
    writeFileSync(join(cwd, 'worker.mts'), replaced);
    const outputs = await Promise.all(['0', '1'].map((worker) => runWorker(cwd, worker)));
    expect(outputs).toEqual(['worker 0: y = 3.00 x + 1.00\n', 'worker 1: y = 3.00 x + 1.00\n']);
    await stop(server, cwd, ['mnist']);
  });
});

async function runWorker(cwd: string, worker: string): Promise<string> {
  const child = spawn(process.execPath, ['--import', import.meta.resolve('tsx'), 'worker.mts', worker, '2'], {
    ...{ cwd, stdio: ['ignore', 'pipe', 'pipe'], timeout: 50_000, killSignal: 'SIGKILL' },
  });
  let output = '';
  child.stdout.on('data', (text: Buffer) => (output += text.toString()));
  child.stderr.on('data', (text: Buffer) => (output += text.toString()));
  await once(child, 'close');
  return output;
}

describe.skipIf(!hasSharedMemory())('what tributary server says', () => {
  const stopped = AbortSignal.abort('SIGINT');
  const say = (cwd: string, ...args: string[]) =>
    run(['server', '--port', '0', '--service', 'a', ...args], { cwd, signal: stopped });

  test('in words is where the nonce is and where it listens', async () => {
    const cwd = folder();
    const { code, stdout, stderr } = await say(cwd, '--folder', 'kept');
    expect({ code, stderr }).toEqual({ code: 130, stderr: '' });
    expect(stdout).toContain(
      `Service a: its nonce is new, in ${join(cwd, 'nonces', 'a.nonce')}; checkpoints in `,
    );
    expect(stdout).toMatch(/Listening at 127\.0\.0\.1:\d+, 1 core\.\nStopped by SIGINT\.\n$/);
    expect(stdout).not.toContain(accessTo(cwd, 'a').nonce);
    expect((await say(cwd)).stdout).toContain('Service a: its nonce is in ');
  });

  test('warns of an address that others reach without TLS, and of a nonce that others read', async () => {
    const cwd = folder();
    expect((await say(cwd, '--address', '0.0.0.0')).stderr).toMatch(
      /^Warning: others can reach 0\.0\.0\.0, and there is no TLS: .*--tls-key/,
    );
    chmodSync(join(cwd, 'nonces', 'a.nonce'), 0o644);
    expect((await say(cwd)).stderr).toMatch(/^Warning: .*a\.nonce can be read by other users.*chmod 600/);
  });

  test.each([
    [[], 'needs --service NAME'],
    [['--service', '../a'], 'no use for the service "../a"'],
    [['--service', '..'], 'no use for the service ".."'],
    [['--service', ''], 'no use for the service ""'],
    [['--service', 'a', '--service', 'a'], 'got the service a twice'],
    [['--service', 'a', '--cores', '0'], '1 to 256 for --cores, got 0'],
    [['--service', 'a', '--port', '65535', '--cores', '2'], '0 to 65533 for --port with 2 cores'],
    [['--service', 'a', '--port', '65535', '--cores', '1'], '0 to 65534 for --port with 1 core,'],
    [['--service', 'a', '--lost-workers', 'wait'], '--folder'],
    [['--service', 'a', '--durability', 'disk'], '--folder'],
    [['--service', 'a', '--durability', 'tape'], 'process, disk for --durability'],
    [['--service', 'a', '--lost-workers', 'leave'], 'wait, release for --lost-workers'],
    [['--service', 'a', '--tls-key', 'key.pem'], '--tls-key, --tls-cert and --tls-ca together'],
    [
      ['--service', 'a', '--listen', '127.0.0.1:0', '--port', '1'],
      '--listen, or one by --address and --port',
    ],
    [['--service', 'a', '--listen', '127.0.0.1:65535'], '0 to 65534 for a port of --listen with 1 core'],
    [['--service', 'a', '--pin', 'all'], 'auto or a list of processors such as 0,2-3 for --pin, got "all"'],
    [['--service', 'a', '--max-bytes', '0'], 'above 0 for --max-bytes'],
    [['--service', 'a', '--max-log-bytes', '9'], '--folder'],
    [['--service', 'a', '--folder', 'kept', '--max-log-bytes', '0'], 'above 0 for --max-log-bytes'],
  ])('of %j is what is wrong, and nothing is done', async (args, fault) => {
    const cwd = folder();
    const { code, stdout, stderr } = await run(['server', ...args], { cwd });
    expect({ code, stdout }).toEqual({ code: 2, stdout: '' });
    expect(stderr).toMatch(/^error \[INVALID_COMMAND\]: /);
    expect(stderr).toContain(fault);
    expect(readdirSync(cwd)).toEqual([]);
  });

  test('of several addresses is all of them, as workers give them', async () => {
    const listen = ['--listen', '127.0.0.1:0,127.0.0.1:0', '--listen', 'localhost:0'];
    const args = ['server', '--service', 'a', ...listen];
    const words = await run(args, { cwd: folder(), signal: stopped });
    expect(words.stdout).toMatch(
      /Listening at 127\.0\.0\.1:\d+ and 127\.0\.0\.1:\d+ and localhost:\d+, 1 core\./,
    );
    const { stdout } = await run([...args, '--json'], { cwd: folder(), signal: stopped });
    expect(stdout).toMatch(/"server":"127\.0\.0\.1:\d+\+127\.0\.0\.1:\d+\+localhost:\d+"/);
    const wrong = await run(['server', '--service', 'a', '--listen', 'here'], { cwd: folder() });
    expect(wrong).toMatchObject({ code: 2, stdout: '' });
    expect(wrong.stderr).toContain("'here' is no address of a server; give 'host:port'");
  });

  test('of a processor that is not there is which, and which ones there are', async () => {
    const cwd = folder();
    const { code, stderr } = await run(['server', '--service', 'a', '--pin', '4095'], { cwd });
    expect(code).toBe(2);
    expect(readdirSync(cwd)).toEqual([]);
    expect(stderr).toMatch(/core 0 cannot be pinned to processor 4095: this process may use \d/);
    expect((await say(folder(), '--pin', 'auto')).code).toBe(130);
  });

  test('of a port that is taken is which, and how to choose another', async () => {
    const cwd = folder();
    const taken = createServer().listen(0, '127.0.0.1');
    await once(taken, 'listening');
    const { port } = taken.address() as AddressInfo;
    const { code, stderr } = await run(['server', '--service', 'a', '--port', String(port)], { cwd });
    taken.close();
    expect(code).toBe(2);
    expect(stderr).toContain(`error [INVALID_ARGUMENT]: Port ${port} of 127.0.0.1 is taken`);
    expect(stderr).toContain('--port');
  });

  test.each([
    [
      'a host that does not exist',
      ['--address', 'nowhere.invalid'],
      "the host name 'nowhere.invalid' cannot be resolved",
      2,
    ],
    ['a file that is missing', ['--tls-key', 'a', '--tls-cert', 'b', '--tls-ca', 'c'], 'The TLS key ', 2],
    ['a folder of nonces that is a file', ['--nonces', 'file'], 'could not be written', 1],
    ['a file that holds no nonce', ['--nonces', 'bad'], 'does not hold 64 hexadecimal digits', 1],
    ['a file that is empty', ['--nonces', 'empty'], 'is empty', 1],
  ])('of %s is one line', async (_what, args, fault, exitCode) => {
    const cwd = folder();
    writeFileSync(join(cwd, 'file'), '');
    for (const [name, content] of [
      ['bad', 'not to be shown'],
      ['empty', '\n'],
    ] as const) {
      mkdirSync(join(cwd, name));
      writeFileSync(join(cwd, name, 'a.nonce'), content);
    }
    const { code, stderr } = await run(['server', '--port', '0', '--service', 'a', ...args], { cwd });
    expect(code).toBe(exitCode);
    expect(stderr).toMatch(/^error \[[A-Z_]+\]: .*\n$/);
    expect(stderr).toContain(fault);
    expect(stderr).not.toContain('not to be shown');
  });
});

test('docs/servers.md names every option of the command', () => {
  const page = readFileSync(new URL('../../docs/servers.md', import.meta.url), 'utf8');
  for (const option of Object.keys(serverCommand.options)) expect(page).toContain(`--${option}`);
});
