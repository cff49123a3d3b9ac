export { mergeChart } from './chart.ts';
export { benchMerge, MERGE_LINKS } from './merge.ts';
export type { MergeBench, MergeBenchOptions, MergeCase, MergeLink } from './merge.ts';
export { MERGE_MODELS } from './merge-models.ts';
export type { MergeModel } from './merge-models.ts';
