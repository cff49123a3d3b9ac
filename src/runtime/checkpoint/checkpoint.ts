/**
 * One checkpoint: a folder with `model.safetensors`, `optimizer.safetensors` and `state.json`. The state names the
 * length and SHA-256 of the other two and carries a checksum of itself. Which folder and how many is the store's task.
 * Invariant: under its final name a checkpoint is complete: it is written beside, flushed, then renamed; and what
 * `loadCheckpoint` returns is bit for bit what was saved.
 */
import { createHash } from 'node:crypto';
import { readFileSync, statSync } from 'node:fs';
import { join } from 'node:path';
import {
  flushFolder,
  putInPlaceInSteps,
  systemFiles,
  TributaryError,
  UsageError,
  type AwaitedSteps,
} from '../../base/index.ts';
import { canonicalJson } from './json.ts';
import type { JsonValue } from './json.ts';
import { bytesOfHead, layOut, placesInFile } from './safetensors.ts';
import type { StoredTensor, TensorData, Tensors, TensorsToWrite } from './tensor-data.ts';
import {
  corruptFile,
  openCheckpointFile,
  readRange,
  readSealed,
  verifySealed,
  writeSealed,
} from './verified-file.ts';
import type { FileSeal } from './verified-file.ts';

const VERSION = 1;
const MODEL_FILE = 'model.safetensors';
const OPTIMIZER_FILE = 'optimizer.safetensors';
const STATE_FILE = 'state.json';
const MAX_STATE_BYTES = 64 * 2 ** 20;

export interface CheckpointData {
  /** The number of finished steps. */
  readonly step: number;
  readonly epoch: number;
  /** The parameters and buffers of the model. */
  readonly tensors: Tensors;
  /** The optimizer's slots. */
  readonly optimizer: Tensors;
  /** All else that a resume needs: optimizer and schedule, order of the data, seeds, metrics. */
  readonly state: JsonValue;
}

/** The same with tensors that are brought while they are written. */
export interface CheckpointToWrite extends Omit<CheckpointData, 'tensors' | 'optimizer'> {
  readonly tensors: TensorsToWrite;
  readonly optimizer: TensorsToWrite;
}

/** The same with tensors that were left in their files. */
export interface LoadedCheckpoint extends CheckpointData {
  /** Parameters and slots that were left. Absent if none were to be. */
  readonly stored?: {
    readonly tensors: Readonly<Record<string, StoredTensor>>;
    readonly optimizer: Readonly<Record<string, StoredTensor>>;
  };
}

interface StateFile {
  readonly version: number;
  readonly step: number;
  readonly epoch: number;
  readonly state: JsonValue;
  /** The run that wrote it. Absent in those of earlier versions. */
  readonly run?: string;
  readonly files: { readonly [MODEL_FILE]: FileSeal; readonly [OPTIMIZER_FILE]: FileSeal };
}

/**
 * Writes the checkpoint of a run to the folder `path`, which must not exist, by way of the folder
 * `temporary` beside it. On an error nothing is left under either name, unless only flushing the
 * entry failed: then the checkpoint is there, whole, and a power cut may take it. `accept`
 * runs when everything is written and flushed, before it gets its final name; it refuses by throwing a
 * `TributaryError`, which is thrown on.
 */
export function* writeCheckpoint(
  checkpoint: CheckpointToWrite,
  path: string,
  temporary: string,
  run?: string,
  accept?: () => void,
): AwaitedSteps<void> {
  const { step, epoch, tensors, optimizer, state } = checkpoint;
  for (const [name, value] of Object.entries({ step, epoch })) {
    if (Number.isSafeInteger(value) && value >= 0) continue;
    throw new UsageError(
      'INVALID_ARGUMENT',
      `The ${name} of a checkpoint is ${value}; give a whole number of 0 or more.`,
      {
        [name]: value,
      },
    );
  }
  // Everything that can be refused is checked before the first byte is written.
  canonicalJson(state);
  const model = layOut(tensors);
  const slots = layOut(optimizer);
  const write = function* (): AwaitedSteps<void> {
    systemFiles.makeFolder(temporary, 0o777);
    const files = {
      [MODEL_FILE]: yield* writeSealed(join(temporary, MODEL_FILE), model),
      [OPTIMIZER_FILE]: yield* writeSealed(join(temporary, OPTIMIZER_FILE), slots),
    };
    const text = formatState({
      ...{ version: VERSION, step, epoch, state, files },
      ...(run === undefined ? {} : { run }),
    });
    yield* writeSealed(join(temporary, STATE_FILE), [Buffer.from(text)]);
    flushFolder(systemFiles, temporary);
    accept?.();
  };
  try {
    yield* putInPlaceInSteps(systemFiles, { temporary, path }, write);
  } catch (cause) {
    // What `accept` refuses, or who brings a tensor.
    if (cause instanceof TributaryError) throw cause;
    throw new UsageError(
      'CHECKPOINT_NOT_WRITTEN',
      `The checkpoint ${path} could not be written: ${cause instanceof Error ? cause.message : String(cause)}. ` +
        'Earlier checkpoints are untouched; check the free space and the permissions of the folder.',
      { path, step },
      cause,
    );
  }
}

/** Reads a checkpoint folder, every byte checked: CHECKPOINT_CORRUPT names the file, what was expected and found. */
export function loadCheckpoint(path: string): CheckpointData {
  const { step, epoch, state, tensors, optimizer } = loadCheckpointBut(path, () => false);
  return { step, epoch, state, tensors, optimizer };
}

/** The same without tensors that are left in their files, where they are read from later. */
export function loadCheckpointBut(path: string, isLeft: (tensor: string) => boolean): LoadedCheckpoint {
  const { step, epoch, state, files } = readState(path);
  const part = (file: typeof MODEL_FILE | typeof OPTIMIZER_FILE) =>
    readTensors(join(path, file), files[file], isLeft);
  const [model, slots] = [part(MODEL_FILE), part(OPTIMIZER_FILE)];
  return {
    ...{ step, epoch, state, tensors: model.tensors, optimizer: slots.tensors },
    stored: { tensors: model.stored, optimizer: slots.stored },
  };
}

function readTensors(
  file: string,
  seal: FileSeal,
  isLeft: (tensor: string) => boolean,
): { readonly tensors: Tensors; readonly stored: Readonly<Record<string, StoredTensor>> } {
  const tensors: [string, TensorData][] = [];
  const stored: [string, StoredTensor][] = [];
  readSealed(file, seal, (read) => {
    const head = read(0, bytesOfHead(read(0, 8), seal.bytes, file));
    return [...placesInFile(head, seal.bytes, file).places].flatMap(([name, place]) => {
      const { type, shape, offset, length } = place;
      const common = { dtype: type.dtype, shape };
      if (isLeft(name)) {
        const read = (first: number, target: TensorData['data']) => {
          const bytes = new Uint8Array(target.buffer, target.byteOffset, target.byteLength);
          readRange(file, offset + first * type.bytes, bytes, seal);
        };
        stored.push([name, { ...common, length, read }]);
        return [];
      }
      const bytes = new Uint8Array(length * type.bytes);
      tensors.push([name, { ...common, data: type.view(bytes.buffer, 0, length) }]);
      return [{ offset, bytes }];
    });
  });
  return { tensors: Object.fromEntries(tensors), stored: Object.fromEntries(stored) };
}

/** Checks a checkpoint folder without keeping it in memory, and gives its step. */
export function verifyCheckpoint(path: string): number {
  const { step, files } = readState(path);
  verifySealed(join(path, MODEL_FILE), files[MODEL_FILE]);
  verifySealed(join(path, OPTIMIZER_FILE), files[OPTIMIZER_FILE]);
  return step;
}

/** The run that wrote a checkpoint; undefined if an earlier version did, which did not say. */
export function runOfCheckpoint(path: string): string | undefined {
  return readState(path).run;
}

function formatState(body: StateFile): string {
  const value = body as unknown as { [key: string]: JsonValue };
  return canonicalJson({ ...value, checksum: checksum(value) });
}

function checksum(body: { readonly [key: string]: JsonValue }): string {
  return createHash('sha256').update(canonicalJson(body)).digest('hex');
}

function readState(path: string): StateFile {
  if (statSync(path, { throwIfNoEntry: false }) === undefined) {
    throw new UsageError('FILE_NOT_FOUND', `There is no checkpoint ${path}. Check the path.`, { path });
  }
  const file = join(path, STATE_FILE);
  const text = readStateText(file);
  let parsed: { readonly [key: string]: JsonValue };
  let expected: string;
  let canonical: boolean;
  try {
    parsed = JSON.parse(text) as typeof parsed;
    expected = checksum(Object.fromEntries(Object.entries(parsed).filter(([key]) => key !== 'checksum')));
    canonical = text === canonicalJson(parsed);
  } catch (cause) {
    throw corruptFile(file, 'JSON as it was written', `${text.length} characters that are not`, cause);
  }
  if (parsed.checksum !== expected) {
    throw corruptFile(file, `checksum ${expected}`, `checksum ${JSON.stringify(parsed.checksum)}`);
  }
  // The text counts too: a flipped blank would not change the value.
  if (!canonical) throw corruptFile(file, 'the text as it was written', 'the same value in other bytes');
  return checkState(parsed, file);
}

function readStateText(file: string): string {
  const descriptor = openCheckpointFile(file);
  try {
    const { bytes: size } = systemFiles.size(descriptor);
    if (size > MAX_STATE_BYTES) throw corruptFile(file, `at most ${MAX_STATE_BYTES} bytes`, `${size} bytes`);
    const bytes = readFileSync(descriptor);
    const text = bytes.toString('utf8');
    if (!Buffer.from(text).equals(bytes)) throw corruptFile(file, 'UTF-8 text', 'other bytes');
    return text;
  } catch (cause) {
    if (cause instanceof UsageError) throw cause;
    throw corruptFile(file, 'a readable file', cause instanceof Error ? cause.message : String(cause), cause);
  } finally {
    systemFiles.close(descriptor);
  }
}

/** The checksum holds, so this catches other versions and files made by hand, not damage. */
function checkState(parsed: { readonly [key: string]: JsonValue }, file: string): StateFile {
  if (parsed.version !== VERSION) {
    throw new UsageError(
      'CHECKPOINT_MISMATCH',
      `The checkpoint file ${file} has version ${JSON.stringify(parsed.version)}; this release reads version ${VERSION}. ` +
        'Resume with the release that wrote it.',
      { file, expected: VERSION, actual: parsed.version },
    );
  }
  const count = (value: unknown) => Number.isSafeInteger(value) && (value as number) >= 0;
  const files = (parsed.files ?? {}) as Record<string, Partial<FileSeal> | undefined>;
  const sealed = [MODEL_FILE, OPTIMIZER_FILE].every(
    (name) => count(files[name]?.bytes) && typeof files[name]?.sha256 === 'string',
  );
  const isNamed = parsed.run === undefined || typeof parsed.run === 'string';
  if (!sealed || !isNamed || !count(parsed.step) || !count(parsed.epoch) || parsed.state === undefined) {
    throw corruptFile(file, 'step, epoch, state and the seals of both files', 'a state without some of them');
  }
  return parsed as unknown as StateFile;
}
