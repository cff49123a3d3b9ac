export * from './errors.ts';
export * from './random.ts';
export * from './schedule.ts';
