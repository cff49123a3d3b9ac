/**
 * A program that does what a user does with the packed package, where there is no network but a registry: it serves the packages of
 * `node_modules` at the loopback address, installs the tarball into an empty folder, then runs commands there. The test starts it in
 * a network namespace of its own. Prints what each command gave as JSON; the first that fails is the last.
 */
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { existsSync, mkdirSync, readFileSync } from 'node:fs';
import { createServer, type ServerResponse } from 'node:http';
import type { AddressInfo } from 'node:net';
import { join } from 'node:path';

export interface UserCommands {
  /** Holds the packages that the registry serves. */
  readonly modules: string;
  /** The folder to install into. */
  readonly cwd: string;
  readonly commands: readonly (readonly string[])[];
}

export interface CommandOutcome {
  readonly command: readonly string[];
  readonly status: number | null;
  readonly stdout: string;
  readonly stderr: string;
}

interface Manifest {
  readonly name: string;
  readonly version: string;
  readonly scripts?: Readonly<Record<string, string>>;
}

const { modules, cwd, commands } = JSON.parse(process.argv[2]!) as UserCommands;
const server = createServer((request, response) => serve(decodeURIComponent(request.url!), response));
server.listen(0, '127.0.0.1');
await once(server, 'listening');
const registry = `http://127.0.0.1:${(server.address() as AddressInfo).port}`;

mkdirSync(join(cwd, 'home'), { recursive: true });
const outcomes: CommandOutcome[] = [];
for (const command of commands) {
  const outcome = await run(command);
  outcomes.push(outcome);
  if (outcome.status !== 0) break;
}
server.close();
server.closeAllConnections();
process.stdout.write(JSON.stringify(outcomes));

/** What the registry says of a package, or its tarball. */
function serve(url: string, response: ServerResponse): void {
  const tarball = url.endsWith('.tgz');
  const name = url.slice(1).replace(/\.tgz$/, '');
  const folder = join(modules, name);
  if (name.includes('..') || !existsSync(join(folder, 'package.json'))) {
    response.writeHead(404).end('{}');
    return;
  }
  if (tarball) {
    const tar = spawn('tar', [
      '-C',
      folder,
      '--transform',
      's,^\\.,package,',
      '-I',
      'gzip -1',
      '-cf',
      '-',
      '.',
    ]);
    tar.stdout.pipe(response);
    return;
  }
  const manifest = JSON.parse(readFileSync(join(folder, 'package.json'), 'utf8')) as Manifest;
  const { version, scripts = {} } = manifest;
  const hasInstallScript = ['preinstall', 'install', 'postinstall'].some((script) => script in scripts);
  const dist = { tarball: `${registry}/${name}.tgz` };
  response.end(
    JSON.stringify({
      ...{ name: manifest.name, 'dist-tags': { latest: version } },
      versions: { [version]: { ...manifest, hasInstallScript, dist } },
    }),
  );
}

/** As a user with nothing set up: no settings of npm, no cache. */
async function run(command: readonly string[]): Promise<CommandOutcome> {
  const env = {
    ...{ PATH: process.env['PATH'], HOME: join(cwd, 'home'), NO_COLOR: '1' },
    ...{ npm_config_registry: registry, npm_config_fetch_retries: '0', npm_config_update_notifier: 'false' },
  };
  const child = spawn(command[0]!, command.slice(1), { cwd, env, stdio: ['ignore', 'pipe', 'pipe'] });
  const texts = { stdout: '', stderr: '' };
  child.stdout.on('data', (text: Buffer) => (texts.stdout += text.toString()));
  child.stderr.on('data', (text: Buffer) => (texts.stderr += text.toString()));
  const [status] = (await once(child, 'close')) as [number | null];
  return { command, status, ...texts };
}
