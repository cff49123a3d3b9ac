export { joinCluster, joinMpiJob, TRANSPORTS } from './join-cluster.ts';
export type { JoinClusterOptions, TransportChoice } from './join-cluster.ts';
