/**
 * `tributary server service create|end|list`: services of servers that run already, over the
 * network, by whoever has the secret of their administrator. It starts no server. Invariants:
 * neither the secret nor a nonce is in arguments, output or log; the file of a nonce is written
 * only when all servers have the service, and never in the place of another one.
 */
import { existsSync, linkSync } from 'node:fs';
import { dirname, join, resolve } from 'node:path';
import {
  flushFolder,
  makeDurableFolder,
  OWNER_FILE,
  OWNER_FOLDER,
  systemFiles,
  UsageError,
  writeNewFile,
} from '../../base/index.ts';
import { createServices, endServices, listServices } from '../../server/index.ts';
import type { AdministratorOptions, ListedService, OfServer } from '../../server/index.ts';
import { defineCommand, type OptionSpecs, type OptionValues } from '../command.ts';
import { ExitCode, type CommandIo } from '../io.ts';
import { checkOutputFile } from '../output-file.ts';
import { givenSecretFile, readGivenFile } from '../secret-file.ts';
import { serviceOptions, SERVICE_NAME } from '../service-options.ts';
import { serviceVoice } from '../service.ts';

const common = {
  server: {
    kind: 'texts',
    value: 'HOST:PORT',
    help: 'A server, by its first port; several with commas between them, or by giving the option again.',
  },
  'admin-secret-file': {
    kind: 'text',
    value: 'FILE',
    help: 'Holds the secret that the servers were started with.',
  },
  'tls-key': {
    kind: 'text',
    value: 'FILE',
    help: 'Private key of this administrator, PEM. Default: no TLS.',
  },
  'tls-cert': { kind: 'text', value: 'FILE', help: 'Its certificate, PEM.' },
  'tls-ca': { kind: 'text', value: 'FILE', help: 'Certificates that sign those of the servers, PEM.' },
  'tls-server-name': {
    kind: 'text',
    value: 'NAME',
    help: 'The name that certificates of servers must have. Default: the address that is dialled.',
  },
} as const satisfies OptionSpecs;

const createOptions = {
  ...common,
  workers: {
    kind: 'count',
    help: 'Workers that it is for; others are refused. Default: as many as the first worker says.',
  },
  ...serviceOptions,
  'nonce-file': {
    kind: 'text',
    value: 'FILE',
    help: 'Where to write what workers of the service must know. Default nonces/NAME.nonce.',
  },
} as const satisfies OptionSpecs;

type Common = OptionValues<typeof common> & { readonly json?: boolean };
type CreateOptions = OptionValues<typeof createOptions> & { readonly json?: boolean };

export const createServiceCommand = defineCommand({
  name: 'server service create',
  summary:
    'Create a service for one training on servers that run, and write the nonce that its workers need.',
  operands: '<NAME>',
  operandCount: [1, 1],
  options: createOptions,
  details:
    'Done again with the same options it changes nothing, so it can be repeated where a server failed. The servers were started with --admin-secret-file: docs/servers.md',
  examples: [
    'tributary server service create mnist --server 127.0.0.1:7000 --admin-secret-file admin.secret',
    'tributary server service create lm --server 10.0.0.5:7000,10.0.0.6:7000 --admin-secret-file admin.secret --workers 8 --nonce-file lm.nonce',
  ],
  run: async ([name], given: CreateOptions, io) => {
    const command = 'create';
    const namespace = checkName(command, name!);
    const servers = serversOf(command, given);
    if (given.workers === 0) throw wrong(command, 'takes a number above 0 for --workers');
    if (given['max-bytes'] === 0) throw wrong(command, 'takes a number of bytes above 0 for --max-bytes');
    if (given['max-log-bytes'] === 0)
      throw wrong(command, 'takes a number of bytes above 0 for --max-log-bytes');
    const options = administratorOf(command, given, io);
    const path = resolve(io.cwd, given['nonce-file'] ?? join('nonces', `${namespace}.nonce`));
    checkOutputFile(path, '--nonce-file');
    const { 'grace-ms': graceMs, 'max-bytes': maxBytes, 'max-log-bytes': maxLogBytes, workers } = given;
    const service = {
      ...{ namespace, workers, graceMs, maxBytes, maxLogBytes },
      durability: given.durability as 'process' | 'disk' | undefined,
      lostWorkers: given['lost-workers'] as 'wait' | 'release' | undefined,
    };
    const made = await createServices(servers, service, options, ({ nonce }) => checkNonceFile(path, nonce));
    writeNonce(path, made.access.nonce);
    const each = made.servers.map(({ address, answer: { isNew, folder } }) => ({
      server: address,
      isNew,
      folder,
    }));
    serviceVoice(io, given.json).tell(
      { type: 'created', service: namespace, nonceFile: path, servers: each },
      [
        ...each.map(({ server, isNew, folder }) => {
          const kept = folder === null ? 'it ends with the server' : `checkpoints in ${folder} there`;
          return `Service ${namespace} ${isNew ? 'was created' : 'was there'} at ${server}; ${kept}.`;
        }),
        `Its nonce is in ${path}.`,
      ].join('\n'),
    );
    return ExitCode.ok;
  },
});

export const endServiceCommand = defineCommand({
  name: 'server service end',
  summary: 'End a service that was created over the network; its checkpoints stay where they are.',
  operands: '<NAME>',
  operandCount: [1, 1],
  options: common,
  details:
    'Its workers are disconnected and its memory is given back. A service that is not there is no error.',
  examples: ['tributary server service end mnist --server 127.0.0.1:7000 --admin-secret-file admin.secret'],
  run: async ([name], given: Common, io) => {
    const namespace = checkName('end', name!);
    const servers = serversOf('end', given);
    const ended = await endServices(servers, namespace, administratorOf('end', given, io));
    const each = ended.map(({ address, answer }) => ({ server: address, ...answer }));
    serviceVoice(io, given.json).tell(
      { type: 'ended', service: namespace, servers: each },
      each
        .map(({ server, wasThere, folder }) => {
          const left = folder === null ? '' : ` Checkpoints, if it has any, stay in ${folder} there.`;
          return wasThere
            ? `Service ${namespace} was ended at ${server}.${left}`
            : `Service ${namespace} was not at ${server}.`;
        })
        .join('\n'),
    );
    return ExitCode.ok;
  },
});

export const listServicesCommand = defineCommand({
  name: 'server service list',
  summary: 'List the services of servers: workers, mode, memory and steps.',
  operands: '',
  operandCount: [0, 0],
  options: common,
  details:
    'Connected are the workers that are there now; steps are the updates of the parameter that has seen the most.',
  examples: ['tributary server service list --server 127.0.0.1:7000 --admin-secret-file admin.secret --json'],
  run: async (_operands, given: Common, io) => {
    const servers = serversOf('list', given);
    const listed = await listServices(servers, administratorOf('list', given, io));
    serviceVoice(io, given.json).tell(
      {
        type: 'services',
        servers: listed.map(({ address, answer }) => ({
          server: address,
          services: answer.map(({ namespace, ...more }) => ({ service: namespace, ...more })),
        })),
      },
      listed.map(tableOf).join('\n\n'),
    );
    return ExitCode.ok;
  },
});

function tableOf({ address, answer }: OfServer<readonly ListedService[]>): string {
  if (answer.length === 0) return `${address} has no services.`;
  const head = ['service', 'from', 'workers', 'connected', 'mode', 'bytes', 'of at most', 'steps'];
  const rows = answer.map((one) => [
    ...[
      one.namespace,
      one.isCreated ? 'network' : 'start',
      String(one.workers ?? '-'),
      String(one.connected),
    ],
    ...[one.mode ?? '-', String(one.bytes), String(one.maxBytes), String(one.steps)],
  ]);
  const widths = head.map((title, i) => Math.max(title.length, ...rows.map((row) => row[i]!.length)));
  const lineOf = (row: readonly string[]) =>
    `  ${row.map((cell, i) => cell.padEnd(widths[i]!)).join('  ')}`.trimEnd();
  return [`${address}:`, lineOf(head), ...rows.map(lineOf)].join('\n');
}

function checkName(command: string, name: string): string {
  if (SERVICE_NAME.test(name)) return name;
  throw wrong(
    command,
    `has no use for the service ${JSON.stringify(name)}; a name has 1 to 64 letters, digits, '.', '_' and '-', and begins with no '.'`,
  );
}

function serversOf(command: string, { server = [] }: Common): readonly string[] {
  const servers = server.flatMap((list) => list.split(',')).map((address) => address.trim());
  if (servers.length === 0) throw wrong(command, 'needs --server HOST:PORT: which servers');
  const twice = servers.find((address, i) => servers.indexOf(address) !== i);
  if (twice !== undefined) throw wrong(command, `got the server ${twice} twice`);
  return servers;
}

function administratorOf(command: string, given: Common, io: CommandIo): AdministratorOptions {
  const { 'admin-secret-file': file, 'tls-key': key, 'tls-cert': cert, 'tls-ca': ca } = given;
  if (file === undefined) throw wrong(command, 'needs --admin-secret-file FILE: that of the servers');
  const { 'tls-server-name': serverName } = given;
  const paths = [key, cert, ca];
  if (paths.includes(undefined) && (paths.some((path) => path !== undefined) || serverName !== undefined)) {
    throw wrong(command, 'takes --tls-key, --tls-cert and --tls-ca together');
  }
  const secret = givenSecretFile(resolve(io.cwd, file));
  if (secret.isExposed) {
    serviceVoice(io, given.json).warn(
      `${secret.path} can be read by other users of this machine; chmod 600 ${secret.path}`,
    );
  }
  const read = (path: string, what: string) => readGivenFile(resolve(io.cwd, path), what);
  const tls = key !== undefined && {
    key: read(key, 'TLS key'),
    cert: read(cert!, 'TLS certificate'),
    ca: read(ca!, 'TLS authority'),
    serverName,
  };
  return { secret: secret.secret, signal: io.signal, ...(tls && { tls }) };
}

/** Another nonce is that of somebody's workers. */
function checkNonceFile(path: string, nonce: string): void {
  if (!existsSync(path) || readGivenFile(path, 'nonce').trim() === nonce) return;
  throw new UsageError(
    'OUTPUT_EXISTS',
    `${path} holds another nonce than that of this service. Nothing was created: give another file by --nonce-file, or delete it if no service needs it any more.`,
    { path },
  );
}

/** It appears whole, readable by this user only. */
function writeNonce(path: string, nonce: string): void {
  const beside = `${path}.${process.pid}.new`;
  try {
    if (existsSync(path)) return checkNonceFile(path, nonce);
    makeDurableFolder(systemFiles, dirname(path), OWNER_FOLDER);
    try {
      writeNewFile(systemFiles, beside, Buffer.from(`${nonce}\n`), OWNER_FILE);
      linkSync(beside, path);
      flushFolder(systemFiles, dirname(path));
    } finally {
      systemFiles.remove(beside);
    }
  } catch (cause) {
    if (cause instanceof UsageError) throw cause;
    throw new UsageError(
      'FILE_NOT_WRITTEN',
      `The service is there, but its nonce could not be written to ${path}: ${(cause as Error).message}. Repeat the command, with another file by --nonce-file; it creates nothing twice.`,
      { path },
      cause,
    );
  }
}

function wrong(command: string, fault: string): UsageError {
  return new UsageError(
    'INVALID_COMMAND',
    `tributary server service ${command} ${fault}. See: tributary server service ${command} --help`,
  );
}
