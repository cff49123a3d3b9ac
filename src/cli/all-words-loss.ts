/**
 * How well a language model that was trained on drawn words tells the next word from all words: from the scores of all, as its own
 * loss is among the drawn ones only, and much smaller. Trains nothing.
 * Invariant: the loss is that of any other language model on the same text, so that they can be compared.
 */
import type { Dataset } from '../data/index.ts';
import { argmax, meanLoss, type Evaluation } from '../runtime/index.ts';
import type { Replica } from '../runtime/index.ts';

/** The loss is the mean over all positions. */
export function evaluateAmongAllWords(
  replica: Replica,
  dataset: Dataset,
  average: string | undefined,
): Evaluation {
  const targets = replica.memory.inputs.get('targets')!;
  const length = targets.length / replica.memory.sampleIds.length;
  let [loss, correct] = [0, 0];
  meanLoss(replica, dataset, true, { average }, (size, logits) => {
    const words = logits!.length / (size * length);
    for (let position = 0; position < size * length; position++) {
      const scores = logits!.subarray(position * words, (position + 1) * words);
      const target = (targets.view as Int32Array)[position]!;
      const best = argmax(scores, 0, words);
      loss += logOfSum(scores, scores[best]!) - scores[target]!;
      if (best === target) correct++;
    }
  });
  const positions = dataset.length * length;
  return { loss: loss / positions, accuracy: correct / positions };
}

/** Of the exponentials; none of them overflows, as the largest exponent is taken off. */
function logOfSum(exponents: Float32Array, largest: number): number {
  let sum = 0;
  for (const exponent of exponents) sum += Math.exp(exponent - largest);
  return largest + Math.log(sum);
}
