/**
 * How the peers of `bench exchange` are started at their best: gloo with the update in torch, Open MPI with our update
 * kernel. Not the conversation with them, which is that of `bench allreduce`: a turn's bytes are those of the whole model,
 * and the checksum of the weights comes back where the algorithm would. Invariant: the environment is the caller's plus
 * settings that make the peer faster.
 */
import { randomBytes } from 'node:crypto';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { UsageError } from '../../base/index.ts';
import { ourGroup } from '../allreduce/index.ts';
import type { GroupCommand } from '../allreduce/index.ts';
import { RAISED_MALLOC } from '../allreduce/group-command.ts';
import { elementsOf, exchangeModels } from './models.ts';
import type { ModelName, ModelTensor } from './models.ts';

export type ExchangeTransport = 'shm' | 'tcp';

export interface ExchangePeerOptions {
  /** By name, or its tensors. */
  readonly model: ModelName | readonly ModelTensor[];
  readonly ranks: number;
  /** What messages go by. gloo always goes by TCP on loopback. */
  readonly transport: ExchangeTransport;
  /** A folder of this run alone, for what the ranks meet at. */
  readonly folder: string;
  readonly env: Readonly<Record<string, string | undefined>>;
}

/** The variants that a turn may ask for; the faster one is the peer's figure. */
export const GLOO_VARIANTS = ['flat'] as const;
export const OPEN_MPI_VARIANTS = ['in-place', 'separate'] as const;
export type OpenMpiVariant = (typeof OPEN_MPI_VARIANTS)[number];

export interface GlooExchangeOptions extends ExchangePeerOptions {
  /** The Python that has torch. Default '/usr/bin/python3'. */
  readonly pythonPath?: string | undefined;
}

export function glooExchangeGroup(options: GlooExchangeOptions): GroupCommand {
  const { model, ranks, folder, env, pythonPath = '/usr/bin/python3' } = options;
  // From the built package the sources are two folders up.
  const program = fileURLToPath(new URL('../../../src/bench/peers/exchange_gloo_peer.py', import.meta.url));
  const settings = { ...RAISED_MALLOC, OMP_NUM_THREADS: '1', GLOO_SOCKET_IFNAME: 'lo' };
  const store = join(folder, `gloo-${randomBytes(4).toString('hex')}`);
  const elements = elementsOf(tensorsOf(model));
  return {
    name: 'gloo',
    ranks,
    processes: ({ host, port, token }) =>
      Array.from({ length: ranks }, (_, rank) => ({
        file: pythonPath,
        // -E -s: the torch measured is the system's; -B: no files left beside the program.
        args: [
          ...['-E', '-s', '-B', program, host, `${port}`, token],
          ...[`${rank}`, `${ranks}`, store, `${elements}`],
        ],
      })),
    env: { ...env, ...settings },
    settings,
    install: 'apt-get install python3-torch',
  };
}

/** Its ranks are Node processes under mpirun, bound to cores, with malloc's thresholds raised. */
export function openMpiExchangeGroup(options: ExchangePeerOptions): GroupCommand {
  const { model, ranks, transport, folder, env } = options;
  const ending = import.meta.url.endsWith('.ts') ? 'ts' : 'js';
  const group = ourGroup({
    transport: 'mpi',
    mpiClass: transport === 'tcp' ? 'tcp' : 'vader',
    rankProgram: fileURLToPath(new URL(`./open-mpi-rank.${ending}`, import.meta.url)),
    ...{ ranks, folder, env },
  });
  return {
    ...group,
    name: 'Open MPI',
    processes: (control) =>
      group.processes(control).map(({ file, args }) => ({ file, args: [...args, formatModel(model)] })),
  };
}

/** For the command line of a rank: a name, or the lengths of the tensors. */
export function formatModel(model: ExchangePeerOptions['model']): string {
  return typeof model === 'string' ? model : model.map(({ length }) => length).join();
}

/** The lengths of the tensors. */
export function parseModel(text = ''): readonly number[] {
  if (isModelName(text)) return exchangeModels[text]().map(({ length }) => length);
  const lengths = text.split(',').map(Number);
  if (lengths.every((length) => Number.isSafeInteger(length) && length > 0)) return lengths;
  throw new UsageError(
    'INVALID_ARGUMENT',
    `there is no model '${text.slice(0, 200)}'; give one of ${Object.keys(exchangeModels).join(', ')}, or lengths of tensors`,
    { model: text.slice(0, 200) },
  );
}

export function isModelName(text: string): text is ModelName {
  return Object.hasOwn(exchangeModels, text);
}

function tensorsOf(model: ExchangePeerOptions['model']): readonly ModelTensor[] {
  return typeof model === 'string' ? exchangeModels[model]() : model;
}
