export { createMpiTransport } from './mpi-transport.ts';
export type { MpiTransport, MpiTransportOptions } from './mpi-transport.ts';
export type { NativeCollectives, NativeOperation } from './native-collectives.ts';
