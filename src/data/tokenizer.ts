/**
 * Splits a text into words the way of Kim's sentence-classification CNN (2014): lower case, punctuation `, ! ? ( )`
 * as words of their own, `n't 's 've 're 'd 'll 'm` split off, other symbols dropped. Letters, marks and digits of every
 * script are kept; scripts without spaces are not segmented.
 * Invariant: the same text gives the same words everywhere, and tokenising the joined words changes nothing.
 */

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
      .replace(/(?:n't|'(?:s|ve|re|d|ll|m))(?![\p{L}\p{M}\p{N}])/giu, ' $&')
      .replace(/[(),!?]/g, ' $& ')
      .split(' ')
      .filter((word) => word !== '');
  }
}
