/**
 * The words for what happens in a training step: one list for all that show or predict a step. A bar or a line may add what it is
 * about ("backward conv1..conv2"), by names that `namesInShort` makes of parameters. Decides and measures nothing.
 */
export const STEP_OPERATIONS = [
  'load',
  'pull rows',
  'forward',
  'backward',
  'reduce',
  'push',
  'pull',
  'broadcast',
  'norm',
  'update',
  'apply',
  'states',
  'average',
  'elastic exchange',
  'check',
  'checkpoint',
  'evaluate',
  // Not operations on the model, but a step's time goes there, too.
  'plan',
  'compile',
  'wait',
] as const;

export type StepOperation = (typeof STEP_OPERATIONS)[number];

/** Called when a part of a step has ended, with the name to show. */
export type OnPart = (operation: StepOperation, name?: string) => void;

/**
 * A name for parameters that are handled together: their first and last layer in the order of `all`, the parameters of the model,
 * "conv1..conv2". A layer of which only some are among them is named by the parameter, "conv1.w"; what both ends begin with is
 * written once, "block1.norm..out".
 */
export function namesInShort(names: readonly string[], all: Iterable<string>): string {
  const own = new Set(names);
  const divided = new Set<string>();
  const inOrder: string[] = [];
  for (const name of all) {
    if (own.has(name)) inOrder.push(name);
    else divided.add(layerOf(name));
  }
  if (inOrder.length === 0) return '';
  const shown = (name: string) => (divided.has(layerOf(name)) ? name : layerOf(name));
  const [first, last] = [shown(inOrder[0]!), shown(inOrder.at(-1)!)];
  return first === last ? first : `${first}..${withoutSharedPath(last, first)}`;
}

/** Layers call their parameters "layer.w". */
function layerOf(parameter: string): string {
  const end = parameter.lastIndexOf('.');
  return end > 0 ? parameter.slice(0, end) : parameter;
}

function withoutSharedPath(path: string, other: string): string {
  const [parts, others] = [path.split('.'), other.split('.')];
  let shared = 0;
  while (shared < parts.length - 1 && parts[shared] === others[shared]) shared++;
  return parts.slice(shared).join('.');
}
