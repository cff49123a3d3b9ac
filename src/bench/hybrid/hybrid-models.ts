/**
 * What `bench hybrid` trains, after section 7 of Parallax: models with tables, of which a batch
 * touches few rows, one of them with a large dense part beside them, and two that are dense
 * throughout. Samples are made up; words follow Zipf's law. Built alike in every worker. Measures
 * nothing.
 */
import { Random } from '../../base/index.ts';
import { Dataset, drawLogUniform } from '../../data/index.ts';
import { clipByGlobalNorm, type Model } from '../../graph/index.ts';
import { lenet, resnet, sampledLanguageModel, textCnn } from '../../models/index.ts';
import { madeUpImages } from '../made-up-images.ts';
import { zipfText } from './zipf-text.ts';

export const HYBRID_MODELS = ['text-cnn', 'lm', 'large-lm', 'cnn', 'resnet'] as const;
export type HybridModel = (typeof HYBRID_MODELS)[number];

interface Described {
  readonly title: string;
  /** Samples in a batch of one worker. */
  readonly batchEach: number;
  /** Whether a batch looks rows up, so that the switches of Parallax have something to do. */
  readonly hasTables: boolean;
  /**
   * Whether a process, which can address 4 GB, has room for all strategies and switches at once, so
   * that all take turns.
   */
  readonly fitsManyTimes: boolean;
  readonly build: () => Model;
  readonly samples: () => Dataset;
}

const CLASSES = 10;
const TEXT = { vocabulary: 20_000, length: 32, size: 128, filters: 64 } as const;
const LANGUAGE = { vocabulary: 100_000, length: 16, size: 256, units: 128, drawn: 1024 } as const;
/**
 * Heavy in both kinds: an LSTM with 5.5 million weights, 22 MB, and about as many bytes of rows in a
 * step of four workers.
 */
const LARGE_LANGUAGE = { ...LANGUAGE, vocabulary: 50_000, drawn: 2048, length: 8, units: 1024 } as const;
const SAMPLES = { images: 512, texts: 4096, sentences: 2048 } as const;
const CLIP_NORM = 5;

export const hybridModels: Readonly<Record<HybridModel, Described>> = {
  'text-cnn': {
    ...{ title: 'text-CNN, 20,000 words', batchEach: 32, hasTables: true, fitsManyTimes: true },
    build: () => {
      const model = textCnn({ ...TEXT, classes: CLASSES });
      clipByGlobalNorm(model.graph, CLIP_NORM);
      return model;
    },
    samples: madeUpTexts,
  },
  lm: {
    ...{ title: 'language model, 100,000 words', batchEach: 8, hasTables: true, fitsManyTimes: false },
    build: () => sampledLanguageModel({ ...LANGUAGE, clipNorm: CLIP_NORM }),
    samples: () => zipfText({ ...LANGUAGE, samples: SAMPLES.sentences }),
  },
  'large-lm': {
    ...{ title: 'language model, 50,000 words, LSTM of 1,024 units', batchEach: 8 },
    ...{ hasTables: true, fitsManyTimes: true },
    build: () => sampledLanguageModel({ ...LARGE_LANGUAGE, clipNorm: CLIP_NORM }),
    samples: () => zipfText({ ...LARGE_LANGUAGE, samples: SAMPLES.sentences }),
  },
  cnn: {
    ...{ title: 'CNN on 1 x 28 x 28', batchEach: 32, hasTables: false, fitsManyTimes: true },
    build: () => lenet({ inputShape: [1, 28, 28], classes: CLASSES }),
    samples: () => madeUpImages({ sampleShape: [1, 28, 28], samples: SAMPLES.images, classes: CLASSES }),
  },
  resnet: {
    ...{ title: 'ResNet on 3 x 16 x 16', batchEach: 32, hasTables: false, fitsManyTimes: true },
    build: () => resnet({ inputShape: [3, 16, 16], classes: CLASSES }),
    samples: () => madeUpImages({ sampleShape: [3, 16, 16], samples: SAMPLES.images, classes: CLASSES }),
  },
};

/** Without padding, which is word 0. */
function madeUpTexts(): Dataset {
  const random = new Random(1);
  const { vocabulary, length } = TEXT;
  const tokens = Int32Array.from(
    { length: SAMPLES.texts * length },
    () => 1 + drawLogUniform(random, vocabulary - 1),
  );
  return new Dataset([
    { name: 'tokens', data: tokens, sampleShape: [length] },
    { name: 'labels', data: Int32Array.from({ length: SAMPLES.texts }, (_, i) => i % CLASSES) },
  ]);
}
