/**
 * What a replica does of a step program: forward and backward pass, states, what is done to
 * gradients, the update, moving averages. It sends nothing. Invariants: nothing is changed by a
 * step whose loss is refused; a worker without samples has gradients of zero.
 */
import type { Operation } from '../plan/index.ts';
import type { Replica } from './replica.ts';
import type { ComputeHandler } from './step-walk.ts';
import { NOTHING_ELSEWHERE, type GradientsElsewhere } from './update.ts';

/** What the handlers of one step have in common; set when a batch is loaded. */
export class StepContext {
  /** Of this worker, in the replica's inputs. */
  samples: ArrayLike<number> = [];
  /** Learning rate of this step. Default: that of the optimizer. */
  lr: number | undefined;
  /** Whether anything comes of this step; otherwise the parameters only count one more. */
  isUsed = true;
  /** Parameters that are updated elsewhere. */
  elsewhere: GradientsElsewhere = NOTHING_ELSEWHERE;
  /** What clipping leaves of their gradients. */
  scale = 1;
  /** When forward and backward pass began and ended, and when all gradients were combined. */
  startedMs = 0;
  computedMs = 0;
  combinedMs = 0;

  begin(samples: ArrayLike<number>, lr: number | undefined, isUsed = true): void {
    this.samples = samples;
    this.lr = lr;
    this.isUsed = isUsed;
    this.scale = 1;
  }
}

export interface ReplicaOperationsOptions {
  readonly replica: Replica;
  readonly step: StepContext;
  /** Throws if a step must not be made by such a loss; nothing is updated then. */
  readonly checkLoss: (loss: number) => void;
  /** The gradients of a group are in their places. Default: nothing is done with them. */
  readonly onGradients?: ((parameters: readonly string[]) => void) | undefined;
  /** A batch size was compiled. Default: nobody is told. */
  readonly onCompiled?: (() => void) | undefined;
}

export function replicaOperations(
  options: ReplicaOperationsOptions,
): (operation: Operation) => ComputeHandler | undefined {
  const { replica, step, checkLoss, onGradients, onCompiled } = options;
  let isBehindLoss = false;
  /** The first of those that change something checks the loss, with all gradients combined. */
  const changing = (act: () => void): ComputeHandler => {
    const isFirst = !isBehindLoss;
    isBehindLoss = true;
    return () => {
      if (isFirst && step.isUsed) {
        step.combinedMs = performance.now();
        checkLoss(replica.memory.loss.view[0]!);
      }
      act();
    };
  };
  return ({ kind, form, number = 0, parameters = [] }) => {
    switch (kind) {
      case 'forward':
        return () => {
          step.startedMs = performance.now();
          if (step.samples.length > 0) replica.forward(step.samples, onCompiled);
        };
      case 'backward':
        return () => {
          if (step.samples.length > 0) {
            replica.backward(number);
            onGradients?.(parameters);
          } else if (number === 0) replica.clearGradients();
          step.computedMs = step.combinedMs = performance.now();
        };
      case 'states':
        return () => {
          if (step.isUsed) replica.takeStates();
        };
      case 'norm':
      case 'update':
        if (form === 'transform') {
          return changing(() => {
            if (step.isUsed) step.scale *= replica.transform(number, step.elsewhere, step.scale);
          });
        }
        return changing(() => {
          if (step.isUsed) replica.updateParameters(step.lr, step.elsewhere);
          else replica.step++;
        });
      case 'average':
        return () => {
          if (step.isUsed) replica.followAverages(step.elsewhere);
        };
      default:
        return undefined;
    }
  };
}
