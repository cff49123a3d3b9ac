/**
 * Splits a text into words the way of Kim's sentence-classification CNN (2014): lower case, punctuation `, ! ? ( )`
 * as words of their own, `n't 's 've 're 'd 'll 'm` split off, other symbols dropped. Letters, marks and digits of every
 * script are kept; scripts without spaces are not segmented.
 * Invariant: the same text gives the same words everywhere, and tokenising the joined words changes nothing.
 */

const ENDINGS = ["n't", "'s", "'ve", "'re", "'d", "'ll", "'m"];
const LONGEST_ENDING = 3;

export interface TokenizerOptions {
  /** Whether words are lower-cased. Default true. */
  readonly lowerCase?: boolean;
}

export class Tokenizer {
  readonly lowerCase: boolean;

  constructor(options: TokenizerOptions = {}) {
    this.lowerCase = options.lowerCase ?? true;
  }

  tokenize(text: string): string[] {
    // toLowerCase, unlike toLocaleLowerCase, does not depend on the machine. Composed last, so that the words are in NFC.
    const cased = this.lowerCase ? text.toLowerCase() : text;
    return cased
      .normalize('NFC')
      .replace(/[\u2018\u2019]/g, "'")
      .replace(/[^\p{L}\p{M}\p{N}(),!?'`]+/gu, ' ')
      .replace(/[(),!?]/g, ' $& ')
      .split(' ')
      .flatMap(splitEndings);
  }
}

/** "couldn't've" gives "could", "n't", "'ve". From the end and by position, so that no text takes more than linear time. */
function splitEndings(word: string): string[] {
  const parts: string[] = [];
  let end = word.length;
  for (let ending = endingAt(word, end); ending !== undefined; ending = endingAt(word, end)) {
    parts.push(word.slice(end - ending.length, end));
    end -= ending.length;
  }
  if (end > 0) parts.push(word.slice(0, end));
  return parts.reverse();
}

function endingAt(word: string, end: number): string | undefined {
  const tail = word.slice(Math.max(0, end - LONGEST_ENDING), end).toLowerCase();
  return ENDINGS.find((ending) => tail.endsWith(ending));
}
