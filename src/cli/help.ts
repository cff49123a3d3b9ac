/** Help texts, made of the commands' own data so that they cannot drift from what the parser accepts. */
import { globalOptions, valueName, type Command, type OptionSpecs } from './command.ts';

export function generalHelp(commands: readonly Command[], version: string): string {
  const width = Math.max(...commands.map(({ name }) => name.length));
  return [
    `tributary ${version}: trains neural networks from TypeScript.`,
    '',
    'Usage: tributary <command> [options]',
    '',
    'Commands:',
    ...commands.map(({ name, summary }) => `  ${name.padEnd(width)}  ${summary}`),
    '',
    'Start with:',
    '  tributary train mnist',
    '',
    'tributary <command> --help shows the options of a command and examples. --version prints the version.',
    'Exit codes: 0 done, 1 the run failed, 2 wrong command line, configuration or path, 130 and 143 stopped by a signal.',
    '',
  ].join('\n');
}

export function commandHelp(command: Command): string {
  const { name, operands, summary, details, examples } = command;
  const options: OptionSpecs = { ...command.options, ...globalOptions };
  const rows = Object.entries(options).map(([option, spec]) => {
    const value = spec.kind === 'flag' ? '' : ` ${valueName(spec)}`;
    return [`--${option}${value}${option === 'help' ? ', -h' : ''}`, spec.help] as const;
  });
  const width = Math.min(32, Math.max(...rows.map(([left]) => left.length)));
  const head = ['Usage: tributary', name, operands, '[options]'].filter((part) => part !== '').join(' ');
  return [
    head,
    '',
    summary,
    '',
    'Options:',
    ...rows.map(([left, help]) =>
      left.length > width ? `  ${left}\n  ${' '.repeat(width)}  ${help}` : `  ${left.padEnd(width)}  ${help}`,
    ),
    ...(details === undefined ? [] : ['', details]),
    '',
    examples.length === 1 ? 'Example:' : 'Examples:',
    ...examples.map((example) => `  ${example}`),
    '',
  ].join('\n');
}
