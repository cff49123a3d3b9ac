export { joinCluster, TRANSPORTS } from './join-cluster.ts';
export type { JoinClusterOptions, TransportChoice } from './join-cluster.ts';
export { joinMpiJob } from './join-mpi-job.ts';
export type { JoinMpiJobOptions } from './join-mpi-job.ts';
export { tlsFilesSchema } from './tls-files.ts';
export type { TlsFiles } from './tls-files.ts';
export { MAX_WORKERS, takeWorkerPlace } from './worker-place.ts';
export type { WorkerMachine, WorkerPlace, WorkerPlaceOptions } from './worker-place.ts';
export { WORKER_MARK } from './worker-assignment.ts';
