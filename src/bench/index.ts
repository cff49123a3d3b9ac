/** Comparisons with other systems: the peers of `tributary bench compute`, how they are started and spoken with. */
export * from './peer-command.ts';
export * from './peer-process.ts';
export * from './peer-tensors.ts';
