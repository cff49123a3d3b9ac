/**
 * What the checkpoint thread does: takes one question after the other, does it with blocking calls,
 * answers. It is there so that hashing and flushing never stop the server's main thread. Invariant:
 * every question gets one answer, and errors arrive as what they were.
 */
import { pack } from '../../base/index.ts';
import type { PackedError } from '../../base/index.ts';
import type { Host } from '../../sockets/index.ts';
import type { CheckpointContent } from './checkpoint-file.ts';
import { CheckpointFolder } from './checkpoint-folder.ts';
import type { Common, Listing, Written } from './checkpoint-folder.ts';
import type { Manifest } from './server-state.ts';

/** What can be asked, and what is answered. */
export interface Questions {
  /** Makes the folder; nothing in it is changed. */
  open: { ask: null; answer: null };
  /** Removes what killed writes have left. */
  clear: { ask: null; answer: null };
  /** The data lies on shared memory. */
  write: { ask: { manifest: Manifest; data: Float32Array[]; common: Common }; answer: Written };
  goBackTo: { ask: number; answer: null };
  read: { ask: number; answer: CheckpointContent };
  list: { ask: null; answer: Listing };
}
export type QuestionName = keyof Questions;

export type Question = {
  [Name in QuestionName]: { readonly id: number; readonly name: Name; readonly ask: Questions[Name]['ask'] };
}[QuestionName];

export type Answer = { readonly id: number } & (
  { readonly answer: Questions[QuestionName]['answer'] } | { readonly failure: PackedError }
);

export interface CheckpointThreadData {
  readonly folder: string;
  /**
   * Takes the place of a thread that was given up, and so may be in a call of the system: without
   * the file that it was writing, that call cannot bring it under its final name later.
   */
  readonly isSuccessor: boolean;
}

/**
 * Does one question after the other; `post` gets every answer, with the memory that can be handed
 * over.
 */
export class CheckpointDesk {
  readonly #host: Pick<Host, 'files' | 'randomHex'>;
  readonly #data: CheckpointThreadData;
  #folder: CheckpointFolder | undefined;

  constructor(host: Pick<Host, 'files' | 'randomHex'>, data: CheckpointThreadData) {
    this.#host = host;
    this.#data = data;
  }

  take(question: Question, post: (answer: Answer, transfer: ArrayBuffer[]) => void): void {
    const { id } = question;
    try {
      // Opening may fail; the thread must live to say so.
      this.#folder ??= this.#open();
      const answer = answerTo(question, this.#folder);
      const data = question.name === 'read' ? (answer as CheckpointContent).data : [];
      post(
        { id, answer },
        data.map(({ buffer }) => buffer),
      );
    } catch (error) {
      post({ id, failure: pack(error) }, []);
    }
  }

  #open(): CheckpointFolder {
    const folder = new CheckpointFolder(this.#host, this.#data.folder);
    if (this.#data.isSuccessor) folder.clear();
    return folder;
  }
}

function answerTo(question: Question, folder: CheckpointFolder): Questions[QuestionName]['answer'] {
  switch (question.name) {
    case 'open':
      return null;
    case 'clear':
      folder.clear();
      return null;
    case 'write':
      return folder.write(question.ask.manifest, question.ask.data, question.ask.common);
    case 'goBackTo':
      return folder.goBackTo(question.ask);
    case 'read':
      return folder.read(question.ask);
    case 'list':
      return folder.list();
  }
}
