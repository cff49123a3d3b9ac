/**
 * What a checkpoint of a parameter server holds, and the manifest that describes it in a file: the same with ranges as
 * flat lists of numbers and the data apart. No files here. Invariant: a manifest without a fault describes data whose
 * lengths follow from it, so that a reader can compare them with the file before it allocates anything.
 */
import { MAX_KEY_LENGTH, UsageError } from '../../base/index.ts';

export interface ElementRange {
  readonly start: number;
  readonly length: number;
}

export interface TensorState {
  /** 'value', or the name of a slot. */
  readonly name: string;
  readonly ranges: readonly ElementRange[];
  /** The elements of the ranges, one range after the other; may lie on shared memory. */
  readonly data: Float32Array;
}

export interface KeyState {
  readonly name: string;
  /** Elements of the whole key; ranges lie within them. */
  readonly length: number;
  /** For a table: elements of a row. */
  readonly rowLength?: number | undefined;
  readonly version: number;
  /** The last step of each worker that is contained in the tensors. */
  readonly lastSteps: Readonly<Record<string, number>>;
  readonly tensors: readonly TensorState[];
}

/** What one core of the server had besides its tensors. */
export interface CoreState {
  /** Any JSON value; null for none. */
  readonly optimizer: unknown;
  /** Number of the push log that begins with this state; null: pushes are not logged. */
  readonly log: number | null;
  /** The keys that were opened together, as the core needs them to open them again: any JSON value. */
  readonly batches: unknown;
}

export interface ServerState {
  readonly namespace: string;
  /** By core. */
  readonly cores: readonly CoreState[];
  readonly generation: number;
  readonly keys: readonly KeyState[];
}

export interface TensorManifest {
  readonly name: string;
  /** start, length, start, length, ... */
  readonly ranges: readonly number[];
  /** Of the data's bytes, hexadecimal; not yet known before the data is written. */
  readonly sha256: string;
}

export interface KeyManifest extends Omit<KeyState, 'tensors'> {
  readonly tensors: readonly TensorManifest[];
}

export interface Manifest extends Omit<ServerState, 'keys'> {
  readonly format: number;
  readonly step: number;
  readonly keys: readonly KeyManifest[];
}

export const FORMAT = 2;
/** Stands where a hash will be, so that the manifest's length is known before the hashes are. */
const UNKNOWN_HASH = '0'.repeat(64);

/** Neither a key nor a whole server can have more: all memory of a process is 4 GiB. */
const MAX_ELEMENTS = 2 ** 30;
/** A key's longest name, and room for which piece of it this is. */
const MAX_NAME_LENGTH = MAX_KEY_LENGTH + 64;
const MAX_JSON_DEPTH = 32;

/** The manifest of a state and its data, in the order of the file; INVALID_ARGUMENT if the state is not a sound one. */
export function describeState(
  step: number,
  state: ServerState,
): { manifest: Manifest; data: Float32Array[] } {
  const data: Float32Array[] = [];
  let fault: string | undefined;
  const keys = state.keys.map((key): KeyManifest => ({
    name: key.name,
    length: key.length,
    ...(key.rowLength === undefined ? {} : { rowLength: key.rowLength }),
    version: key.version,
    lastSteps: key.lastSteps,
    tensors: key.tensors.map((tensor) => {
      const ranges = tensor.ranges.flatMap(({ start, length }) => [start, length]);
      const expected = elementCount(ranges);
      if (!(tensor.data instanceof Float32Array) || tensor.data.length !== expected) {
        fault ??= `tensor '${tensor.name}' of key '${key.name}' has ${tensor.data?.length} elements of data, its ranges ${expected}`;
      }
      data.push(tensor.data);
      return { name: tensor.name, ranges, sha256: UNKNOWN_HASH };
    }),
  }));
  const { namespace, cores, generation } = state;
  const manifest: Manifest = { format: FORMAT, step, namespace, generation, cores, keys };
  fault ??= manifestFault(manifest);
  if (fault === undefined) return { manifest, data };
  throw new UsageError(
    'INVALID_ARGUMENT',
    `The state of namespace '${namespace}' at step ${step} cannot be written: ${fault}. Correct the state.`,
    { namespace, step },
  );
}

/** The state that `describeState` took apart. */
export function assembleState(manifest: Manifest, data: readonly Float32Array[]): ServerState {
  const { namespace, cores, generation } = manifest;
  let next = 0;
  const keys = manifest.keys.map(({ name, length, rowLength, version, lastSteps, tensors }) => ({
    name,
    length,
    ...(rowLength === undefined ? {} : { rowLength }),
    version,
    lastSteps,
    tensors: tensors.map((tensor) => ({
      name: tensor.name,
      ranges: pairsOf(tensor.ranges),
      data: data[next++]!,
    })),
  }));
  return { namespace, cores, generation, keys };
}

/** Elements of a tensor with these ranges. */
export function elementCount(ranges: readonly number[]): number {
  let sum = 0;
  for (let i = 1; i < ranges.length; i += 2) sum += ranges[i]!;
  return sum;
}

/** Elements of all tensors. */
export function totalElements({ keys }: Manifest): number {
  let sum = 0;
  for (const { tensors } of keys) for (const { ranges } of tensors) sum += elementCount(ranges);
  return sum;
}

/** What is wrong with a manifest of unknown origin, or undefined if it is one. */
export function manifestFault(value: unknown): string | undefined {
  if (!isObject(value)) return 'the manifest is not an object';
  const { format, step, namespace, generation, cores, keys } = value;
  if (format !== FORMAT) return `the format is ${text(format)}, not ${FORMAT}`;
  if (!isCount(step)) return `the step is ${text(step)}, not a whole number of 0 or more`;
  if (!isName(namespace)) return `the namespace ${text(namespace)} is no name`;
  if (!isCount(generation)) return `the generation is ${text(generation)}, not a whole number of 0 or more`;
  if (!Array.isArray(cores)) return 'the cores are not a list';
  const coreProblem = firstFault(cores, coreFault);
  if (coreProblem !== undefined) return coreProblem;
  if (!Array.isArray(keys)) return 'the keys are not a list';
  const fault = firstFault(keys, keyFault) ?? repeatedName(keys as KeyManifest[], 'key');
  if (fault !== undefined) return fault;
  const elements = totalElements(value as unknown as Manifest);
  return elements > MAX_ELEMENTS
    ? `all tensors have ${elements} elements, more than ${MAX_ELEMENTS}`
    : undefined;
}

function coreFault(value: unknown): string | undefined {
  if (!isObject(value)) return 'a core is not an object';
  const { optimizer, log, batches } = value;
  if (!isJson(optimizer, MAX_JSON_DEPTH)) return 'the optimizer is not a JSON value';
  if (log !== null && !isCount(log))
    return `the log of a core is ${text(log)}, not a whole number of 0 or more`;
  return isJson(batches, MAX_JSON_DEPTH) ? undefined : 'the batches of a core are not a JSON value';
}

function keyFault(value: unknown): string | undefined {
  if (!isObject(value) || !isName(value.name)) return 'a key has no name';
  const { name, length, rowLength, version, lastSteps, tensors } = value;
  const key = `key '${name}'`;
  if (!isCount(length) || length > MAX_ELEMENTS) return `${key} has ${text(length)} elements`;
  if (rowLength !== undefined && !(isCount(rowLength) && rowLength > 0 && length % rowLength === 0)) {
    return `${key} has ${length} elements, which are no rows of ${text(rowLength)}`;
  }
  if (!isCount(version)) return `${key} has version ${text(version)}`;
  if (
    !isObject(lastSteps) ||
    !Object.entries(lastSteps).every(([who, last]) => isName(who) && isCount(last))
  ) {
    return `${key} has last steps that are not a whole number for each worker`;
  }
  if (!Array.isArray(tensors)) return `${key} has no list of tensors`;
  const fault = firstFault(tensors, (tensor) => tensorFault(tensor, length));
  return (fault && `${key}: ${fault}`) ?? repeatedName(tensors as TensorManifest[], `tensor of ${key}`);
}

function tensorFault(value: unknown, keyLength: number): string | undefined {
  if (!isObject(value) || !isName(value.name)) return 'a tensor has no name';
  const { name, ranges, sha256 } = value;
  if (typeof sha256 !== 'string' || !/^[0-9a-f]{64}$/.test(sha256)) return `tensor '${name}' has no SHA-256`;
  if (!Array.isArray(ranges) || ranges.length % 2 !== 0 || !ranges.every(isCount)) {
    return `tensor '${name}' has ranges that are not pairs of whole numbers`;
  }
  for (let i = 0; i < ranges.length; i += 2) {
    const end = (ranges[i] as number) + (ranges[i + 1] as number);
    if (end > keyLength) return `tensor '${name}' has a range that ends at ${end} of ${keyLength} elements`;
  }
  return undefined;
}

function firstFault(
  list: readonly unknown[],
  faultOf: (item: unknown) => string | undefined,
): string | undefined {
  for (const item of list) {
    const fault = faultOf(item);
    if (fault !== undefined) return fault;
  }
  return undefined;
}

function repeatedName(list: readonly { readonly name: string }[], what: string): string | undefined {
  const seen = new Set<string>();
  for (const { name } of list) {
    if (seen.has(name)) return `the ${what} '${name}' is there twice`;
    seen.add(name);
  }
  return undefined;
}

function isObject(value: unknown): value is Record<string, unknown> {
  return typeof value === 'object' && value !== null && !Array.isArray(value);
}

export function isCount(value: unknown): value is number {
  return Number.isSafeInteger(value) && (value as number) >= 0;
}

/** Lone surrogates have no UTF-8, so a name with them would come back as another. */
export function isName(value: unknown): value is string {
  if (typeof value !== 'string' || value.length === 0 || value.length > MAX_NAME_LENGTH) return false;
  return Buffer.from(value).toString() === value;
}

/** Whether JSON brings the value back as it is. */
function isJson(value: unknown, depth: number): boolean {
  if (value === null || typeof value === 'boolean' || typeof value === 'string') return true;
  if (typeof value === 'number') return Number.isFinite(value);
  if (depth === 0 || typeof value !== 'object') return false;
  if (Array.isArray(value)) return value.every((item) => isJson(item, depth - 1));
  const prototype: unknown = Object.getPrototypeOf(value);
  if (prototype !== Object.prototype && prototype !== null) return false;
  return Object.values(value).every((item) => isJson(item, depth - 1));
}

function pairsOf(ranges: readonly number[]): ElementRange[] {
  return Array.from({ length: ranges.length / 2 }, (_, i) => ({
    start: ranges[2 * i]!,
    length: ranges[2 * i + 1]!,
  }));
}

function text(value: unknown): string {
  const whole = JSON.stringify(value) ?? String(value);
  return whole.length > 80 ? `${whole.slice(0, 80)}...` : whole;
}
