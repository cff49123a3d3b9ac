export * from './errors.ts';
export * from './package-version.ts';
export * from './packed-error.ts';
export * from './random.ts';
export * from './schedule.ts';
export * from './start-thread.ts';
export * from './store-key.ts';
