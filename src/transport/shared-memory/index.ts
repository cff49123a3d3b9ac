export { createSharedMemoryTransport } from './shared-memory-transport.ts';
export type { SharedMemoryTransport } from './shared-memory-transport.ts';
export type { SharedMemoryOptions } from './options.ts';
