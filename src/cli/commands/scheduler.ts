/**
 * `tributary scheduler`: runs the rendezvous of a cluster until it is stopped. It moves no tensors; if it ends, groups that
 * exist go on. Invariant: the secret is only in its file, never in arguments, output or log.
 */
import { resolve } from 'node:path';
import { UsageError } from '../../base/index.ts';
import { Scheduler } from '../../cluster/index.ts';
import type { SchedulerOptions } from '../../cluster/index.ts';
import { defineCommand, type OptionSpecs, type OptionValues } from '../command.ts';
import { exitCodeOf, type CommandIo } from '../io.ts';
import { openSecretFile, readGivenFile } from '../secret-file.ts';
import { isLoopback, serviceVoice, untilAborted, type ServiceVoice } from '../service.ts';

const DEFAULT_PORT = 7077;
const MAX_PORT = 65_535;

const options = {
  members: {
    kind: 'count',
    help: 'Processes of the cluster: the first group is formed when so many have come.',
  },
  'secret-file': {
    kind: 'text',
    value: 'FILE',
    help: 'Holds what every process must know to join; made if it is not there. Default cluster.secret.',
  },
  port: { kind: 'count', help: `Port to listen at. 0: any that is free. Default ${DEFAULT_PORT}.` },
  address: { kind: 'text', help: 'Address to listen at. Default 127.0.0.1: this machine only.' },
  'heartbeat-ms': {
    kind: 'count',
    help: 'How often members give a sign of life, in milliseconds. Default 1000.',
  },
  'lost-after-ms': {
    kind: 'count',
    help: 'After how long without one a member is lost, in milliseconds. Default 10000.',
  },
  'tls-key': { kind: 'text', value: 'FILE', help: 'Private key of this scheduler, PEM. Default: no TLS.' },
  'tls-cert': { kind: 'text', value: 'FILE', help: 'Its certificate, PEM.' },
} as const satisfies OptionSpecs;

type Options = OptionValues<typeof options> & { readonly json?: boolean };

export const schedulerCommand = defineCommand({
  name: 'scheduler',
  summary: 'Run the scheduler of a cluster, through which its processes find each other.',
  operands: '',
  operandCount: [0, 0],
  options,
  details:
    'Runs until SIGINT or SIGTERM. Processes join by joinCluster({ scheduler, secret }): docs/servers.md',
  outlivesReader: true,
  examples: [
    'tributary scheduler --members 4',
    'tributary scheduler --members 4 --address 10.0.0.5 --port 7077 --secret-file cluster.secret',
  ],
  run: async (_operands, given: Options, io) => {
    const { members: size, port = DEFAULT_PORT, address: host = '127.0.0.1' } = given;
    if (size === undefined || size === 0) throw wrong('needs --members N: how many processes train together');
    if (port > MAX_PORT) throw wrong(`takes 0 to ${MAX_PORT} for --port, got ${port}`);
    const tls = readTls(given, io);
    const file = openSecretFile(resolve(io.cwd, given['secret-file'] ?? 'cluster.secret'));
    const voice = serviceVoice(io, given.json);
    const { 'heartbeat-ms': heartbeatMs, 'lost-after-ms': lostAfterMs } = given;
    const scheduler = await Scheduler.start({
      ...{ size, secret: file.secret, host, port, log: logOf(given, io) },
      ...(tls && { tls }),
      ...(heartbeatMs !== undefined && { heartbeatMs }),
      ...(lostAfterMs !== undefined && { lostAfterMs }),
    });
    try {
      tellEvents(scheduler, given, voice);
      const { address } = scheduler;
      voice.tell(
        {
          ...{ type: 'listening', scheduler: address, members: size, tls: tls !== undefined },
          ...{ secretFile: file.path, isNewSecret: file.isNew, pid: process.pid },
        },
        `Listening at ${address}${tls ? ' with TLS' : ''} for ${size} member${size === 1 ? '' : 's'}; the secret is ${file.isNew ? 'new, ' : ''}in ${file.path}.`,
      );
      if (file.isExposed)
        voice.warn(`${file.path} can be read by other users of this machine; chmod 600 ${file.path}`);
      if (!tls && !isLoopback(host)) {
        voice.warn(
          `others can reach ${host}, and there is no TLS: the secret stays secret, but what is said can be read and altered on its way. Use --tls-key and --tls-cert, or a network that you trust.`,
        );
      }
      await untilAborted(io.signal);
    } finally {
      await scheduler.close();
    }
    const signal = String(io.signal.reason);
    voice.tell({ type: 'stopped', signal }, `Stopped by ${signal}.`);
    return exitCodeOf(io.signal);
  },
});

/** For people the scheduler's own lines say who comes and goes; with --json events do, and the lines are only notes. */
function logOf({ json }: Options, io: CommandIo): (line: string) => void {
  const sink = json ? io.stderr : io.stdout;
  return (line) => sink.write(`${line}\n`);
}

function tellEvents(scheduler: Scheduler, { json }: Options, voice: ServiceVoice): void {
  scheduler.on('formed', ({ group, members }) =>
    voice.tell(
      { type: 'formed', group, members },
      `scheduler: group ${group} formed of member${members.length === 1 ? '' : 's'} ${members.join(', ')}`,
    ),
  );
  if (!json) return;
  scheduler.on('joined', ({ title, newcomer }) => voice.tell({ type: 'joined', title, newcomer }, ''));
  scheduler.on('left', ({ member, title, reason }) =>
    voice.tell({ type: 'left', member, title, reason }, ''),
  );
  scheduler.on('refused', ({ remote, reason, text }) =>
    voice.tell({ type: 'refused', remote, reason, text }, ''),
  );
}

function readTls(given: Options, io: CommandIo): SchedulerOptions['tls'] {
  const { 'tls-key': key, 'tls-cert': cert } = given;
  if (key === undefined && cert === undefined) return undefined;
  if (key === undefined || cert === undefined) throw wrong('takes --tls-key and --tls-cert together');
  return {
    key: readGivenFile(resolve(io.cwd, key), 'TLS key'),
    cert: readGivenFile(resolve(io.cwd, cert), 'TLS certificate'),
  };
}

function wrong(fault: string): UsageError {
  return new UsageError('INVALID_COMMAND', `tributary scheduler ${fault}. See: tributary scheduler --help`);
}
