export * from './errors.ts';
export * from './random.ts';
