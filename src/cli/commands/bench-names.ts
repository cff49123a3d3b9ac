/** Lists of names that `tributary bench` takes, such as `--models cnn,resnet`: each must be one that the benchmark knows. */
import { UsageError } from '../../base/index.ts';

export interface NamesOption<T extends string> {
  readonly bench: string;
  readonly option: string;
  readonly known: readonly T[];
}

/** Nothing typed: undefined. */
export function readNames<T extends string>(
  text: string | undefined,
  { bench, option, known }: NamesOption<T>,
): T[] | undefined {
  return text?.split(',').map((typed) => {
    const name = typed.trim();
    const found = known.find((one) => one === name);
    if (found !== undefined) return found;
    throw new UsageError(
      'INVALID_COMMAND',
      `--${option} has ${JSON.stringify(name)}; tributary bench ${bench} takes ${known.join(', ')}.`,
      { option, actual: name },
    );
  });
}
