/**
 * Update rules and aggregators of users: the contract, and how they are run. A module exports
 * `rules` and `aggregators`, by name; whoever updates loads it, and nothing of it ever comes by the
 * wire. They are elementwise: the same for an element, whatever else is in a piece. Invariants:
 * they see copies, never memory of others; what fails, writes what is no finite number or takes too
 * long changes nothing, and is named.
 */
import { pathToFileURL } from 'node:url';
import { createContext, Script } from 'node:vm';
import { didYouMean, UsageError } from '../base/index.ts';

/** Some elements of a parameter, and what belongs to them; all are as long, and valid in the call only. */
export interface RulePiece {
  /** To be changed in place. */
  readonly parameter: Float32Array;
  /** Combined and scaled; may be overwritten. */
  readonly gradient: Float32Array;
  /** What the rule keeps for each element, by name; all 0 before the first step. To be changed in place. */
  readonly slots: Readonly<Record<string, Float32Array>>;
  /** Number of the update, from 1. */
  readonly step: number;
  /** Learning rate of this step. */
  readonly rate: number;
  /** As whoever trains gave them. */
  readonly options: Readonly<Record<string, unknown>>;
}

export interface OwnRule {
  /** Names of what it keeps for each element. Default: nothing. */
  readonly slots?: readonly string[] | undefined;
  /** Whether a gradient of zeros changes anything, as momentum does. Default true. */
  readonly movesWithoutGradient?: boolean | undefined;
  /** Throws if it cannot work with the options. Default: takes any. */
  readonly check?: ((options: Readonly<Record<string, unknown>>) => void) | undefined;
  /** Synchronous. */
  readonly update: (piece: RulePiece) => void;
}

export interface AggregatedPiece {
  /** To be filled; zeros at first. */
  readonly combined: Float32Array;
  /** Of each worker, in their order; may be overwritten. */
  readonly gradients: readonly Float32Array[];
  /** Behind each of them. */
  readonly samples: readonly number[];
}

export interface OwnAggregator {
  /** Synchronous. */
  readonly combine: (piece: AggregatedPiece) => void;
}

export interface OwnRules {
  readonly rules: Readonly<Record<string, OwnRule>>;
  readonly aggregators: Readonly<Record<string, OwnAggregator>>;
}

/** What can be sent, and kept in a checkpoint. */
export type PlainValue =
  string | number | boolean | null | readonly PlainValue[] | { readonly [name: string]: PlainValue };

/** Names a rule of a module that is loaded where updates are made. */
export type OwnRuleSpec = {
  readonly rule: string;
  /** Learning rate. */
  readonly lr: number;
  /** What the rule is told. Default: none. */
  readonly options?: Readonly<Record<string, PlainValue>>;
};

export const NO_RULES: OwnRules = { rules: {}, aggregators: {} };
/** How long a call may take. */
const MOST_MS = 1000;
const NAME = /^[A-Za-z0-9_-][A-Za-z0-9._-]{0,63}$/;

/** Loads a module, whose path is absolute, and checks what it exports. */
export async function loadOwnRules(path: string): Promise<OwnRules> {
  let module: Record<string, unknown>;
  try {
    module = (await import(pathToFileURL(path).href)) as Record<string, unknown>;
  } catch (cause) {
    throw new UsageError(
      'INVALID_ARGUMENT',
      `the rules in ${path} cannot be loaded: ${(cause as Error).message}; give a module that exports rules or aggregators`,
      { path },
      cause,
    );
  }
  const [rules, aggregators] = [module['rules'] ?? {}, module['aggregators'] ?? {}];
  const fault =
    entriesFault('rules', rules, ruleFault) ??
    entriesFault('aggregators', aggregators, (one) =>
      typeof one['combine'] === 'function' ? undefined : 'has no function combine',
    ) ??
    (Object.keys(rules).length + Object.keys(aggregators).length === 0
      ? 'it exports neither rules nor aggregators'
      : undefined);
  if (fault !== undefined) {
    throw new UsageError('INVALID_ARGUMENT', `the rules in ${path} are not right: ${fault}`, { path });
  }
  return { rules, aggregators } as OwnRules;
}

function entriesFault(
  what: string,
  value: unknown,
  faultOf: (entry: Record<string, unknown>) => string | undefined,
): string | undefined {
  if (typeof value !== 'object' || value === null) return `${what} is no object`;
  for (const [name, entry] of Object.entries(value)) {
    if (!NAME.test(name)) return `'${name}' of ${what} is no name of letters, digits, '.', '_' and '-'`;
    const isObject = typeof entry === 'object' && entry !== null;
    const fault = isObject ? faultOf(entry as Record<string, unknown>) : 'is no object';
    if (fault !== undefined) return `'${name}' of ${what} ${fault}`;
  }
  return undefined;
}

function ruleFault({ slots = [], update, check }: Record<string, unknown>): string | undefined {
  if (typeof update !== 'function') return 'has no function update';
  if (check !== undefined && typeof check !== 'function') return 'has a check that is no function';
  const isNamed = (slot: unknown) => typeof slot === 'string' && NAME.test(slot) && slot !== 'value';
  if (!Array.isArray(slots) || !slots.every(isNamed)) return 'has slots that are no list of names';
  return new Set(slots).size < slots.length ? 'has a slot twice' : undefined;
}

export function isOwnRule(spec: unknown): spec is OwnRuleSpec {
  return typeof spec === 'object' && spec !== null && 'rule' in spec;
}

/** One of those that are known here, or an error that lists them. */
export function ownRuleOf({ rules }: OwnRules, spec: OwnRuleSpec): OwnRule {
  const { rule: name, lr, options = {}, ...others } = spec as OwnRuleSpec & Record<string, unknown>;
  const rule = knownOne('update rule', rules, name);
  const [other] = Object.keys(others);
  if (other !== undefined) {
    throw new UsageError('INVALID_ARGUMENT', `rule '${name}' is given ${other}; give rule, lr and options`, {
      rule: name,
      field: other,
    });
  }
  if (!(typeof lr === 'number' && Number.isFinite(lr) && lr >= 0)) {
    const given = JSON.stringify(lr) ?? 'undefined';
    throw new UsageError(
      'INVALID_ARGUMENT',
      `lr of rule '${name}' is ${given}; give a finite number of 0 or more`,
      { rule: name, lr: given },
    );
  }
  if (typeof options !== 'object' || options === null || Array.isArray(options)) {
    throw new UsageError('INVALID_ARGUMENT', `options of rule '${name}' are no object`, { rule: name });
  }
  guarded(`rule '${name}' does not take its options`, () => rule.check?.(options));
  return rule;
}

export function ownAggregatorOf({ aggregators }: OwnRules, name: string): OwnAggregator {
  return knownOne('aggregator', aggregators, name);
}

function knownOne<T>(what: string, all: Readonly<Record<string, T>>, name: unknown): T {
  if (typeof name === 'string' && Object.hasOwn(all, name)) return all[name]!;
  const known = Object.keys(all);
  const shown = typeof name === 'string' ? `'${name}'` : String(JSON.stringify(name));
  const hint = typeof name === 'string' ? didYouMean(name, known) : '';
  throw new UsageError(
    'INVALID_ARGUMENT',
    `there is no ${what} ${shown} of your own here; ${known.length === 0 ? 'no module with some was loaded: start the server with --rules' : `known are ${known.join(', ')}`}.${hint}`,
    { name: shown, known },
  );
}

let limited: { readonly script: Script; readonly context: { call: () => void } } | undefined;

/** Runs what somebody else wrote, for a limited time; `title` begins the error. */
export function guarded(title: string, work: () => unknown): void {
  if (limited === undefined) {
    const context = createContext({ call: () => undefined }) as { call: () => void };
    limited = { script: new Script('call()'), context };
  }
  let returned: unknown;
  limited.context.call = () => void (returned = work());
  try {
    limited.script.runInContext(limited.context, { timeout: MOST_MS });
  } catch (cause) {
    const { code, message } = cause as { readonly code?: string; readonly message?: string };
    const why =
      code === 'ERR_SCRIPT_EXECUTION_TIMEOUT'
        ? `it took more than ${MOST_MS} ms; look for a loop without an end`
        : (message ?? String(cause));
    throw ruleFailed(title, why, cause);
  }
  if (returned instanceof Promise) {
    returned.catch(() => undefined);
    throw ruleFailed(title, 'it is asynchronous; return nothing');
  }
}

export function ruleFailed(title: string, why: string, cause?: unknown): UsageError {
  return new UsageError('RULE_FAILED', `${title}: ${why}`, { title }, cause);
}

/** The first value that is no finite number, if there is one. */
export function notFiniteAt(values: Float32Array): number | undefined {
  for (let i = 0; i < values.length; i++) if (!Number.isFinite(values[i]!)) return i;
  return undefined;
}
