/**
 * The checkpoints of a parameter server, for its main thread: written in the background by a thread
 * of their own, atomic, checksummed, the last ones kept. Not for the core threads. Invariants: once
 * `write` is done the checkpoint survives a kill and a power cut, and whatever happens before
 * leaves the earlier ones as they were; from `open` to `close` no other process has the folder, in
 * which the cores keep their logs, too.
 */
import { join } from 'node:path';
import { OWNER_FILE, UsageError } from '../../base/index.ts';
import type { Clock } from '../../base/index.ts';
import { FolderLock } from '../../memory/index.ts';
import type { ServerHost } from '../server-host.ts';
import type { Common, Kept, Listing } from './checkpoint-folder.ts';
import { CheckpointLink } from './checkpoint-link.ts';
import { assembleState, describeState, isCount } from './server-state.ts';
import type { ServerState } from './server-state.ts';

/**
 * What the main thread copies before it lets others go on, in elements: well under a millisecond.
 */
const COPY_ELEMENTS = 2 ** 18;
const LOCK_FILE = 'server.lock';

export interface ServerCheckpointsOptions {
  readonly host: ServerHost;
  /** Where the checkpoints lie; made if it is not there. One process has it at a time. */
  readonly folder: string;
  /**
   * Receives a line for each file that `list` skipped or that could not be removed. Default: none.
   */
  readonly onProblem?: ((text: string) => void) | undefined;
  /** How long one call may take, in milliseconds. Default 600,000. */
  readonly timeoutMs?: number | undefined;
}

export class ServerCheckpoints {
  readonly #link: CheckpointLink;
  #lock: FolderLock | undefined;
  readonly #clock: Clock;
  readonly #onProblem: (text: string) => void;

  private constructor({ host, folder, onProblem, timeoutMs = 600_000 }: ServerCheckpointsOptions) {
    if (!(timeoutMs > 0 && timeoutMs < 2 ** 31)) {
      throw new UsageError('INVALID_ARGUMENT', `timeoutMs is ${timeoutMs}; give milliseconds above 0`, {
        timeoutMs,
      });
    }
    this.#link = new CheckpointLink(host, folder, timeoutMs);
    this.#clock = host.clock;
    this.#onProblem = onProblem ?? (() => {});
  }

  /**
   * Takes the folder and removes what killed writes have left in it. FOLDER_IN_USE names the
   * process that has it.
   */
  static async open(options: ServerCheckpointsOptions): Promise<ServerCheckpoints> {
    const checkpoints = new ServerCheckpoints(options);
    try {
      await checkpoints.#link.ask('open', null);
      checkpoints.#lock = take(options);
      await checkpoints.#link.ask('clear', null);
    } catch (error) {
      await checkpoints.close();
      throw error;
    }
    return checkpoints;
  }

  /**
   * Writes a checkpoint; done when it is durable and those that nobody needs are removed, as far as
   * they can be: all but the last two, or, among several servers, the last four and the one that
   * they have in common. The tensors must stand still until then: what changes meanwhile is written
   * half old, half new. Steps grow; the newest may be rewritten. Gives those that are kept, oldest
   * first.
   */
  async write(step: number, state: ServerState, common?: Common): Promise<readonly Kept[]> {
    const { manifest, data } = describeState(step, state);
    const copied = await onSharedMemory(data, this.#clock);
    const { kept, problems } = await this.#link.ask('write', { manifest, data: copied, common });
    for (const problem of problems) this.#onProblem(problem);
    return kept;
  }

  /** The steps whose checkpoints are good to the last byte, ascending. */
  async list(): Promise<number[]> {
    return (await this.look()).steps;
  }

  /** The same, with what is wrong with each of the others. */
  async look(): Promise<Listing> {
    const found = await this.#link.ask('list', null);
    for (const problem of found.problems) this.#onProblem(problem);
    return found;
  }

  /**
   * Reads one, every byte checked: CHECKPOINT_CORRUPT if it is damaged, FILE_NOT_FOUND if it is not
   * there.
   */
  async read(step: number): Promise<ServerState> {
    if (!isCount(step)) {
      throw new UsageError('INVALID_ARGUMENT', `step is ${String(step)}; give a whole number of 0 or more`, {
        step,
      });
    }
    const { manifest, data } = await this.#link.ask('read', step);
    return assembleState(manifest, data);
  }

  /** Training goes on from that checkpoint: newer ones are removed before this is done. */
  async goBackTo(step: number): Promise<void> {
    await this.#link.ask('goBackTo', step);
  }

  /**
   * Ends the thread and lets go of the folder. A write that is under way is given up: await it
   * first.
   */
  async close(): Promise<void> {
    await this.#link.close();
    this.#lock?.release();
    this.#lock = undefined;
  }
}

/**
 * Not in the checkpoint thread: another one takes its place if it hangs, and the cores still have
 * their logs open.
 */
function take({ host, folder }: ServerCheckpointsOptions): FolderLock {
  return FolderLock.take({
    ...{ files: host.files, path: join(folder, LOCK_FILE), mode: OWNER_FILE },
    refusal: (pid) =>
      new UsageError(
        'FOLDER_IN_USE',
        `The folder ${folder} is used by a server in ${pid === undefined ? 'another process' : `process ${pid}`}. ` +
          'Stop that one, or give each server a folder of its own.',
        { path: folder, pid },
      ),
  });
}

/**
 * The thread reads shared memory in place; what lies elsewhere is copied, with a rest after each
 * piece.
 */
async function onSharedMemory(tensors: readonly Float32Array[], clock: Clock): Promise<Float32Array[]> {
  const result: Float32Array[] = [];
  let copied = 0;
  for (const tensor of tensors) {
    if (tensor.buffer instanceof SharedArrayBuffer) {
      result.push(tensor);
      continue;
    }
    const copy = new Float32Array(new SharedArrayBuffer(tensor.byteLength));
    for (let start = 0; start < tensor.length; start += COPY_ELEMENTS) {
      const piece = tensor.subarray(start, start + COPY_ELEMENTS);
      copy.set(piece, start);
      copied += piece.length;
      if (copied < COPY_ELEMENTS) continue;
      copied = 0;
      await new Promise<void>((resolve) => clock.soon(resolve));
    }
    result.push(copy);
  }
  return result;
}
