/**
 * Faults that Tributary had, put back one at a time to see that the simulation finds them. Each is the smallest change of the
 * sources that brings the fault back; a text that is not there exactly once means that the mutant no longer applies.
 */
export interface Mutant {
  readonly name: string;
  /** What went wrong, as users saw it. */
  readonly fault: string;
  readonly changes: readonly Change[];
}

export interface Change {
  /** Relative to the package. */
  readonly path: string;
  readonly from: string;
  readonly to: string;
}

const CORES = 'src/server/cores';

export const MUTANTS: readonly Mutant[] = [
  {
    name: 'failed-checkpoint-counts',
    fault: 'a durable checkpoint that failed reports success when it is asked for again',
    changes: [
      {
        path: `${CORES}/core-checkpoints.ts`,
        from: `const isShared = round?.result === undefined || round.result === 'written';`,
        to: 'const isShared = true;',
      },
      {
        path: `${CORES}/core-checkpoints.ts`,
        from: 'else fail(round.result);\n',
        to: 'else done();\n',
      },
    ],
  },
  {
    name: 'trains-without-checkpoints',
    fault: 'a full disk at step 0 is taken for a service that keeps no checkpoints',
    changes: [
      {
        path: 'src/kvstore/run-steps.ts',
        from: `error instanceof TributaryError && error.code === 'NO_CHECKPOINTS'`,
        to: 'error instanceof UsageError',
      },
    ],
  },
  {
    name: 'torn-log-throws',
    fault: 'the zeros that a power cut leaves in a log end recovery with an error that nobody is told',
    changes: [
      {
        path: 'src/server/durability/log-replay.ts',
        from: `  return (isLost || endsInZeros) && !hasRecordBehind(files, file, at + 4, fileBytes, at) ? 'torn' : 'damaged';`,
        to: `  if (isLost || endsInZeros || hasRecordBehind(files, file, at + 4, fileBytes, at)) throw new RangeError('zeros');
  return 'damaged';`,
      },
      {
        path: `${CORES}/task-sequence.ts`,
        from: 'return failed(asTributaryError(error));',
        to: 'throw error;',
      },
    ],
  },
  {
    name: 'log-is-removed-too-early',
    fault:
      'a checkpoint removes the log that the one before it needs, and what is missing is skipped in silence',
    changes: [
      {
        path: `${CORES}/journal.ts`,
        from: 'if (stored.number < firstLog) this.#remove(stored.path);',
        to: 'if (stored.number < log) this.#remove(stored.path);',
      },
      {
        path: 'src/server/durability/log-chain.ts',
        from: `if (first !== undefined && lowest?.number !== first) throw this.#missing(first, 'the checkpoint');`,
        to: '',
      },
      {
        path: 'src/server/durability/log-chain.ts',
        from: '    this.#checkLinks(lowest);\n',
        to: '',
      },
      {
        path: `${CORES}/push-replay.ts`,
        from: 'if (piece === undefined || expected !== step) throw this.#gap(record, expected);',
        to: 'if (piece === undefined || expected !== step) return;',
      },
    ],
  },
  {
    name: 'first-pushes-are-not-logged',
    fault: 'asynchronous pushes before the first checkpoint are acknowledged and not logged',
    changes: [
      {
        path: `${CORES}/journal.ts`,
        from: `  logPush(key: string, contribution: Contribution, isSkipped: boolean): void {
    if (this.#log === undefined) return;`,
        to: `  logPush(key: string, contribution: Contribution, isSkipped: boolean): void {
    if (this.#log === undefined || this.#log.number === 1) return;`,
      },
    ],
  },
  {
    name: 'failed-part-is-not-told',
    fault: 'a core that cannot give its part of a checkpoint tells its own workers only; the others wait',
    changes: [
      {
        path: `${CORES}/recovery.ts`,
        from: '(error) => (isGivenUp() ? fail(error) : give({ failure: pack(error) })),',
        to: 'fail,',
      },
    ],
  },
  {
    name: 'memory-is-freed-by-time',
    fault: 'the memory of an ended service is given back after a second, whether or not its cores use it',
    changes: [
      {
        path: 'src/server/parameter-server.ts',
        from: '    this.#tell({ endService: serial });\n',
        to: `    this.#tell({ endService: serial });
    this.#host.clock.after(1000, () => void this.#clear(known));\n`,
      },
      {
        path: 'src/server/parameter-server.ts',
        from: 'if (!tenancy?.holders.delete(core) || tenancy.holders.size > 0) return;',
        to: `if (!tenancy?.holders.delete(core) || tenancy.holders.size >= 0) return;`,
      },
    ],
  },
  {
    name: 'writes-once',
    fault: 'a file is written in one call, and what the system did not take of it is missing',
    changes: [
      {
        path: 'src/base/files.ts',
        from: 'export function writeFully(files: Files, file: number, bytes: Uint8Array, position: number): void {\n',
        to: `export function writeFully(files: Files, file: number, bytes: Uint8Array, position: number): void {
  return void files.write(file, bytes, position);\n`,
      },
    ],
  },
  {
    name: 'lost-thread-answers-nobody',
    fault: 'whoever waits for a checkpoint thread that has ended or hangs waits for ever',
    changes: [
      {
        path: 'src/server/durability/checkpoint-link.ts',
        from: '    void worker.terminate();\n    this.#rejectAll(why);\n',
        to: '    void worker.terminate();\n',
      },
    ],
  },
  {
    name: 'resumes-without-a-flush',
    fault:
      'a checkpoint whose folder could not be flushed is reported to be on the disk after going back to it',
    changes: [
      {
        path: 'src/server/durability/checkpoint-folder.ts',
        from: '  #flush(): void {\n',
        to: '  #flush(): void {\n    if (this.#good.size >= 0) return;\n',
      },
    ],
  },
  {
    name: 'keys-of-first-init-only',
    fault: 'a server that was started again is told of keys up to the first whose values it has not',
    changes: [
      {
        path: 'src/kvstore/remote/key-table.ts',
        from: `      const opened = await line.request(again, [], () => undefined, isUrgent);
      isFilled &&= opened.isFilled === true;`,
        to: '      isFilled &&= (await line.request(again, [], () => undefined, isUrgent)).isFilled === true;',
      },
    ],
  },
];

/** The text of a source with a mutant's changes of it. */
export function mutated(
  text: string,
  path: string,
  { name, changes }: Pick<Mutant, 'name' | 'changes'>,
): string {
  return changes
    .filter((change) => change.path === path)
    .reduce((changed, { from, to }) => {
      const parts = changed.split(from);
      if (parts.length === 2) return parts.join(to);
      throw new Error(
        `the mutant '${name}' no longer applies: ${path} has ${parts.length - 1} places like ${JSON.stringify(from)}; ` +
          'write it anew, so that it brings the same fault back',
      );
    }, text);
}
