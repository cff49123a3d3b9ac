export * from './elementwise.ts';
export * from './neural.ts';
export * from './tensor.ts';
