/**
 * Which tables of a model live on servers only, so that a worker has the rows of its batch and
 * never the table. Pure: decided by model and options, before memory is laid out, and so alike on
 * all workers.
 */
import { UsageError } from '../base/index.ts';
import { elementCount, gradients, type Model } from '../graph/index.ts';
import { operationsElsewhere, whyNeededWhole } from '../runtime/index.ts';
import type { Clients, LockStep } from './on.ts';
import type { RunnerConfig } from './runner.ts';

/** A table with more bytes is not laid out on every worker if it need not be. */
const MOST_LOCAL_BYTES = 256 * 2 ** 20;

export function serverTablesOf(
  model: Model,
  config: RunnerConfig,
  workers: number,
  way?: LockStep | Clients,
): ReadonlySet<string> {
  const { serverTables = 'auto' } = config;
  const why = whyNoServerTables(config, workers, way);
  if (serverTables !== 'auto') {
    for (const name of serverTables) {
      const reason = why ?? whyNot(model, name);
      if (reason !== undefined) throw refused(name, reason);
    }
    return new Set(serverTables);
  }
  if (why !== undefined) return new Set();
  const large = [...model.graph.parameters.values()].filter(
    ({ shape }) => 4 * elementCount(shape) > MOST_LOCAL_BYTES,
  );
  return new Set(large.map(({ name }) => name).filter((name) => whyNot(model, name) === undefined));
}

/** Of no model. */
function whyNoServerTables(
  { checkpointDirectory }: RunnerConfig,
  workers: number,
  way: LockStep | Clients | undefined,
): string | undefined {
  if (workers === 1) return 'a run in one process has no servers; train with several workers';
  if (way?.kind === 'clients') return `workers in mode '${way.mode}' have whole tables; train in lock step`;
  if (way?.strategy === 'collectives') {
    return "strategy 'collectives' uses no servers; give 'hybrid', 'parallax' or 'servers'";
  }
  if (checkpointDirectory === undefined) {
    return 'no worker could keep what was trained; give a checkpointDirectory';
  }
  return undefined;
}

function whyNot(model: Model, name: string): string | undefined {
  const { graph } = model;
  const parameter = graph.parameters.get(name);
  if (!parameter) {
    return `the model has no parameter of this name; its parameters are ${[...graph.parameters.keys()].join(', ')}`;
  }
  const needed = whyNeededWhole(model, parameter);
  if (needed !== undefined) return `it ${needed}; leave it out of serverTables`;
  if (!gradients(model.loss).some((one) => one.parameter === parameter)) {
    return 'the loss does not depend on it; leave it out of serverTables';
  }
  const why = operationsElsewhere(graph, parameter);
  return typeof why === 'string' ? `${why}; leave it out of serverTables, or the operation` : undefined;
}

function refused(table: string, reason: string): UsageError {
  return new UsageError('INVALID_ARGUMENT', `${table} cannot live on servers only: ${reason}.`, { table });
}
