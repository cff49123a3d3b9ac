/**
 * Elastic averaging in a training loop (MXNET-MPI, sections 2.2 and 5): workers train weights w of their own, and
 * every INTERVAL steps these and the centre c on the servers move towards each other, by the servers' share alpha of
 * the distance:
 *
 *   c <- c + alpha (w - c)   (equation 2)        w <- w - alpha (w - c)   (equation 3)
 *
 * Not the local update, which is the caller's. Invariant: between two exchanges nothing is sent and no weight changes.
 */
import { UsageError } from '../base/index.ts';
import type { StoreKey } from '../base/index.ts';
import type { KeyStatus, KVStore, OneOrMany, StoreTensor as Tensor } from './kv-store.ts';
import { listOf } from './remote/tensors.ts';

export interface ElasticWeights {
  readonly key: StoreKey;
  /** The worker's own; moved where they lie. */
  readonly weights: Tensor;
}

export interface ElasticStepOptions {
  /** The step whose update the weights have just had, from 1. */
  readonly step: number;
  /** Steps from one exchange to the next; the same on all workers of a client. Default 64, as in the paper. */
  readonly interval?: number | undefined;
}

const DEFAULT_INTERVAL = 64;

/**
 * To be called after every step with all keys, on a store of an elastic type: another would take weights for
 * gradients. All workers of a client call it, with the same weights. Returns undefined if it was not yet time for an
 * exchange.
 */
export async function elasticStep(
  store: KVStore,
  weights: OneOrMany<ElasticWeights>,
  { step, interval = DEFAULT_INTERVAL }: ElasticStepOptions,
): Promise<readonly KeyStatus[] | undefined> {
  checkCount(store, 'step', step);
  checkCount(store, 'interval', interval);
  if (step % interval !== 0) return undefined;
  // One push-pull, so that both equations see the same centre: after a push and a pull it would have moved.
  return store.pushpull(listOf(weights).map(({ key, weights: own }) => ({ key, gradient: own, into: own })));
}

function checkCount({ rank }: KVStore, name: string, value: number): void {
  if (Number.isSafeInteger(value) && value > 0) return;
  throw new UsageError(
    'INVALID_ARGUMENT',
    `${name} is ${value} on worker ${rank}; give a whole number of 1 or more`,
    { worker: rank, [name]: value },
  );
}
