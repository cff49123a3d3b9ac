/**
 * `tributary server`: runs one parameter server until it is stopped. It trains nothing and knows no model; workers say how
 * they train when they connect. Invariants: a nonce is only in its file, never in arguments, output or log; whatever ends
 * the command, the server is closed.
 */
import { existsSync } from 'node:fs';
import { join, resolve } from 'node:path';
import { didYouMean, UsageError } from '../../base/index.ts';
import {
  keptServicesFile,
  ParameterServer,
  processorsFor,
  readListenAddresses,
  readProcessors,
} from '../../server/index.ts';
import type { ListenAddress, ParameterServerOptions } from '../../server/index.ts';
import { defineCommand, type OptionSpecs, type OptionValues } from '../command.ts';
import { exitCodeOf, type CommandIo } from '../io.ts';
import { openSecretFile, readGivenFile, type SecretFile } from '../secret-file.ts';
import { serviceOptions, SERVICE_NAME } from '../service-options.ts';
import { addressText, isLoopback, serviceVoice, untilAborted, type ServiceVoice } from '../service.ts';

const DEFAULT_PORT = 7000;
const MAX_CORES = 256;
const MAX_PORT = 65_535;
const NONCE = /^[0-9a-f]{64}$/;

const options = {
  port: {
    kind: 'count',
    help: `Port of the first core; the others have those that follow. 0: any that are free. Default ${DEFAULT_PORT}.`,
  },
  cores: { kind: 'count', help: 'Threads that own parameters; the same on all servers. Default 1.' },
  pin: {
    kind: 'text',
    value: 'auto|LIST',
    help: 'Processors that the cores stay on, one for each core, such as 0,2-3; auto: any that this process may use. Default: wherever the system puts them.',
  },
  address: { kind: 'text', help: 'Address to listen at. Default 127.0.0.1: this machine only.' },
  listen: {
    kind: 'texts',
    value: 'HOST:PORT',
    help: 'Instead of --address and --port: several addresses, as of several network interfaces, with commas between them or by giving the option again. Every core listens at each.',
  },
  service: {
    kind: 'texts',
    value: 'NAME',
    help: 'A namespace for one training; may be given several times.',
  },
  nonces: {
    kind: 'text',
    value: 'FOLDER',
    help: 'Where NAME.nonce is, which the workers of a service must know; made if it is not there. Default nonces.',
  },
  folder: {
    kind: 'text',
    value: 'FOLDER',
    help: 'Where checkpoints are kept, of this server alone. Default: none are.',
  },
  rules: {
    kind: 'text',
    value: 'FILE',
    help: 'A module with update rules of your own, which trainings may name. It runs in the server: give only what you trust. Default: none.',
  },
  ...serviceOptions,
  'admin-secret-file': {
    kind: 'text',
    value: 'FILE',
    help: 'Holds what administrators must know, who create and end services over the network; made if it is not there. Default: nobody can.',
  },
  'tls-key': { kind: 'text', value: 'FILE', help: 'Private key of this server, PEM. Default: no TLS.' },
  'tls-cert': { kind: 'text', value: 'FILE', help: 'Its certificate, PEM.' },
  'tls-ca': {
    kind: 'text',
    value: 'FILE',
    help: 'Certificates that sign those of servers and workers, PEM.',
  },
} as const satisfies OptionSpecs;

type Options = OptionValues<typeof options> & { readonly json?: boolean };

export const serverCommand = defineCommand({
  name: 'server',
  summary: 'Run a parameter server, which workers push gradients to and pull parameters from.',
  operands: '',
  // Words of a command that there is not.
  operandCount: [0, Infinity],
  options,
  details:
    'Runs until SIGINT or SIGTERM. With --admin-secret-file, services are created, ended and listed while it runs: tributary server service create --help. How workers connect, and where to put servers: docs/servers.md',
  outlivesReader: true,
  examples: [
    'tributary server --service mnist',
    'tributary server --port 7000 --cores 2 --service mnist --folder checkpoints --lost-workers wait',
    'tributary server --folder kept --admin-secret-file admin.secret',
    'tributary server --cores 4 --pin 0-3 --listen 10.0.0.5:7000,10.1.0.5:7000 --service mnist',
    'tributary server --address 10.0.0.5 --service mnist --tls-key key.pem --tls-cert cert.pem --tls-ca ca.pem',
  ],
  run: async ([word, ...more], given: Options, io) => {
    if (word !== undefined) throw noSuchWord(word, more);
    const names = checkOptions(given);
    const tls = readTls(given, io);
    const voice = serviceVoice(io, given.json);
    const nonces = names.map((name) => openNonce(name, given, io));
    const administration = openAdministration(given, io, voice);
    const failed = new AbortController();
    let running: ParameterServer | undefined = undefined;
    const log = (text: string): void => {
      voice.tell({ type: 'log', text }, text);
      if (running?.failure) failed.abort();
    };
    const rules = given.rules === undefined ? undefined : resolve(io.cwd, given.rules);
    const server = (running = await start(given, { tls, log, administration, rules }));
    try {
      tellKept(server, voice);
      names.forEach((name, i) => offer(server, name, nonces[i]!, given, io, voice));
      announce(server, given, voice);
      await untilAborted(AbortSignal.any([io.signal, failed.signal]));
    } finally {
      await server.close();
    }
    if (!io.signal.aborted) throw server.failure!;
    const signal = String(io.signal.reason);
    voice.tell({ type: 'stopped', signal }, `Stopped by ${signal}.`);
    return exitCodeOf(io.signal);
  },
});

async function start(
  given: Options,
  more: Pick<ParameterServerOptions, 'tls' | 'log' | 'administration' | 'rules'>,
): Promise<ParameterServer> {
  const { cores = 1 } = given;
  const listen = listenOf(given);
  try {
    return await ParameterServer.start({ listen, cores, pinned: pinnedOf(given), ...more });
  } catch (error) {
    throw listeningFault(error, listen, cores);
  }
}

function listenOf({ listen = [], address, port = DEFAULT_PORT }: Options): readonly ListenAddress[] {
  if (listen.length === 0) return [{ address: address ?? '127.0.0.1', port }];
  return readListenAddresses(listen);
}

function pinnedOf({ pin }: Options): ParameterServerOptions['pinned'] {
  if (pin === undefined || pin === 'auto') return pin === 'auto';
  const processors = readProcessors(pin);
  if (processors) return processors;
  throw wrong(`takes auto or a list of processors such as 0,2-3 for --pin, got ${JSON.stringify(pin)}`);
}

/** The error in terms of this command's options. */
function listeningFault(error: unknown, listen: readonly ListenAddress[], cores: number): unknown {
  if (!(error instanceof UsageError)) return error;
  const { from, reason, address: host } = error.facts;
  if (from === undefined && !String(reason).includes('EADDRINUSE')) return error;
  // Of several addresses the one that it is about, if that is known.
  const { address, port } = listen.find((one) => one.address === host) ?? listen[0]!;
  const which = cores === 1 ? `Port ${port}` : `One of the ports ${port} to ${port + cores - 1}`;
  const option = listen.length === 1 ? '--port' : '--listen';
  return new UsageError(
    'INVALID_ARGUMENT',
    `${which} of ${address} is taken, or this user may not use it. Give another by ${option}; 0 takes any that is free.`,
    { address, port, cores },
    error,
  );
}

function openNonce(name: string, { nonces = 'nonces' }: Options, io: CommandIo): SecretFile {
  const file = openSecretFile(join(resolve(io.cwd, nonces), `${name}.nonce`));
  if (NONCE.test(file.secret)) return file;
  throw new UsageError(
    'INVALID_DATA',
    `${file.path} does not hold 64 hexadecimal digits in lower case; delete it, and a new nonce is made, or copy that of the other servers.`,
    { path: file.path },
  );
}

function openAdministration(
  given: Options,
  io: CommandIo,
  voice: ServiceVoice,
): ParameterServerOptions['administration'] {
  const { 'admin-secret-file': path } = given;
  const folder = given.folder === undefined ? undefined : resolve(io.cwd, given.folder);
  if (path === undefined) {
    const kept = folder === undefined ? undefined : keptServicesFile(folder);
    if (kept === undefined || !existsSync(kept)) return undefined;
    throw wrong(
      `found services that were created over the network, in ${kept}, and cannot offer them without --admin-secret-file, which their nonces depend on; give the file that it had, or remove ${kept}`,
    );
  }
  const { secret, isNew, isExposed, ...file } = openSecretFile(resolve(io.cwd, path));
  voice.tell(
    { type: 'administration', secretFile: file.path, isNewSecret: isNew, folder: folder ?? null },
    `Administrators need the secret ${isNew ? 'that is new, ' : ''}in ${file.path}; services that they create ${folder === undefined ? 'end with the server' : `are kept in ${folder}`}.`,
  );
  if (isExposed)
    voice.warn(`${file.path} can be read by other users of this machine; chmod 600 ${file.path}`);
  return { secret, folder };
}

/** Services that were created over the network before the server was started. */
function tellKept(server: ParameterServer, voice: ServiceVoice): void {
  for (const { namespace } of server.services)
    voice.tell(
      { type: 'kept', service: namespace },
      `Service ${namespace}: created over the network, and kept.`,
    );
}

/** Makes a service and says what its workers need. */
function offer(
  server: ParameterServer,
  name: string,
  nonce: SecretFile,
  given: Options,
  io: CommandIo,
  voice: ServiceVoice,
): void {
  const folder = given.folder === undefined ? undefined : join(resolve(io.cwd, given.folder), name);
  const lostWorkers = given['lost-workers'] as 'wait' | 'release' | undefined;
  const durability = given.durability as 'process' | 'disk' | undefined;
  const { 'grace-ms': graceMs, 'max-bytes': maxBytes, 'max-log-bytes': maxLogBytes } = given;
  const share = Math.floor(server.capacityBytes / (given.service?.length ?? 1));
  if (server.services.some(({ namespace }) => namespace === name)) {
    throw wrong(
      `has the service ${name} already, which was created over the network and is kept; leave --service ${name} out, or end it first`,
    );
  }
  server.createService({
    ...{ namespace: name, nonce: nonce.secret, folder, durability, lostWorkers, graceMs, maxLogBytes },
    maxBytes: maxBytes ?? share,
  });
  voice.tell(
    {
      type: 'service',
      service: name,
      nonceFile: nonce.path,
      isNewNonce: nonce.isNew,
      folder: folder ?? null,
    },
    `Service ${name}: its nonce is ${nonce.isNew ? 'new, ' : ''}in ${nonce.path}; checkpoints ${folder === undefined ? 'are not kept' : `in ${folder}`}.`,
  );
  if (nonce.isExposed)
    voice.warn(`${nonce.path} can be read by other users of this machine; chmod 600 ${nonce.path}`);
}

function announce(server: ParameterServer, given: Options, voice: ServiceVoice): void {
  const { address, port, cores, listening } = server;
  const tls = given['tls-key'] !== undefined;
  const addresses = listening.map((one) => addressText(one.address, one.port));
  voice.tell(
    // Of several addresses as workers give them.
    {
      type: 'listening',
      server: addresses.join('+'),
      address,
      port,
      addresses,
      cores,
      tls,
      pid: process.pid,
    },
    `Listening at ${addresses.join(' and ')}${tls ? ' with TLS' : ''}, ${coresText(cores)}.`,
  );
  const open = listening.map((one) => one.address).filter((one) => !isLoopback(one));
  if (tls || open.length === 0) return;
  voice.warn(
    `others can reach ${open.join(' and ')}, and there is no TLS: nonces stay secret, but gradients and parameters can be read and altered on their way. Use --tls-key, --tls-cert and --tls-ca, or a network that you trust.`,
  );
}

/** What the parser cannot know; returns the names of the services. */
function checkOptions(given: Options): readonly string[] {
  const { service: names = [], cores = 1 } = given;
  if (names.length === 0 && given['admin-secret-file'] === undefined) {
    throw wrong(
      'needs --service NAME: at least one namespace for workers; or --admin-secret-file FILE, by which services are created later',
    );
  }
  for (const [i, name] of names.entries()) {
    if (!SERVICE_NAME.test(name)) {
      throw wrong(
        `has no use for the service ${JSON.stringify(name)}; a name has 1 to 64 letters, digits, '.', '_' and '-', and begins with no '.'`,
      );
    }
    if (names.indexOf(name) !== i) throw wrong(`got the service ${name} twice; give each a name of its own`);
  }
  if (cores < 1 || cores > MAX_CORES) throw wrong(`takes 1 to ${MAX_CORES} for --cores, got ${cores}`);
  if (given.listen && (given.address !== undefined || given.port !== undefined)) {
    throw wrong('takes addresses and ports by --listen, or one by --address and --port, not both');
  }
  for (const { port } of listenOf(given)) {
    if (port <= MAX_PORT - cores) continue;
    const option = given.listen ? '--listen' : '--port';
    throw wrong(
      `takes 0 to ${MAX_PORT - cores} for ${given.listen ? 'a port of ' : ''}${option} with ${coresText(cores)}, got ${port}`,
    );
  }
  processorsFor(pinnedOf(given), cores);
  if (given['lost-workers'] === 'wait' && given.folder === undefined) {
    throw wrong('goes back to a checkpoint with --lost-workers wait: say by --folder where to keep them');
  }
  if (given.durability !== undefined && given.folder === undefined) {
    throw wrong('keeps nothing without a folder: say by --folder where to keep what --durability is about');
  }
  if (given['max-bytes'] === 0) throw wrong('takes a number of bytes above 0 for --max-bytes');
  if (given['max-log-bytes'] !== undefined && given.folder === undefined) {
    throw wrong(
      'writes no logs without a folder: say by --folder where those are that --max-log-bytes is about',
    );
  }
  if (given['max-log-bytes'] === 0) throw wrong('takes a number of bytes above 0 for --max-log-bytes');
  return names;
}

function noSuchWord(word: string, [next]: readonly string[]): UsageError {
  if (word !== 'service') return wrong(`takes no operands, got ${JSON.stringify(word)}`);
  const known = ['create', 'end', 'list'];
  const hint = next === undefined ? '' : didYouMean(next, known);
  return wrong(`service is followed by create, end or list${hint === '' ? '' : `.${hint}`}`);
}

function readTls(given: Options, io: CommandIo): ParameterServerOptions['tls'] {
  const { 'tls-key': key, 'tls-cert': cert, 'tls-ca': ca } = given;
  if (key === undefined && cert === undefined && ca === undefined) return undefined;
  if (key === undefined || cert === undefined || ca === undefined) {
    throw wrong('takes --tls-key, --tls-cert and --tls-ca together');
  }
  return {
    key: readGivenFile(resolve(io.cwd, key), 'TLS key'),
    cert: readGivenFile(resolve(io.cwd, cert), 'TLS certificate'),
    ca: readGivenFile(resolve(io.cwd, ca), 'TLS authority'),
  };
}

function wrong(fault: string): UsageError {
  return new UsageError('INVALID_COMMAND', `tributary server ${fault}. See: tributary server --help`);
}

function coresText(cores: number): string {
  return `${cores} core${cores === 1 ? '' : 's'}`;
}
