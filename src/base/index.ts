export { runAtOnce, runAwaiting } from './awaited-steps.ts';
export type { AwaitedSteps } from './awaited-steps.ts';
export { systemClock } from './clock.ts';
export type { Clock } from './clock.ts';
export {
  flushWhereAllowed,
  makeDurableFolder,
  OWNER_FILE,
  OWNER_FOLDER,
  putInPlace,
  putInPlaceInSteps,
} from './durable-folder.ts';
export * from './errors.ts';
export { flushFolder, readFully, systemFiles, writeFully, writeNewFile } from './files.ts';
export type { Files } from './files.ts';
export { fillElements, isSeeded } from './initial-values.ts';
export type { Initialiser, SeededInitialiser } from './initial-values.ts';
export { keepNewest } from './keep-newest.ts';
export { refuseUnknownOptions } from './known-options.ts';
export type { OptionNames } from './known-options.ts';
export { didYouMean } from './nearest.ts';
export * from './package-version.ts';
export * from './packed-error.ts';
export { printable, quoted } from './quoted.ts';
export * from './random.ts';
export * from './schedule.ts';
export { expectation, printValue, schemaFault, valueAt } from './schema-fault.ts';
export * from './start-thread.ts';
export * from './store-key.ts';
export { isThreadAlive, systemThreadId, ThreadLink } from './thread-link.ts';
export type { LinkCommand, LinkListener, LinkReport } from './thread-link.ts';
