export { AcceptPause, probeDescriptors } from './accept-pause.ts';
export { challenge, deriveNonce, isNonce, keyOfNonce, keyOfSecret, Transcript } from './credentials.ts';
export type { Role } from './credentials.ts';
export { FaultLog } from './fault-log.ts';
export { systemHost } from './host.ts';
export type { Host } from './host.ts';
export * from './libc.ts';
export { connectionToEvict } from './pending-connections.ts';
export { NOTHING, PollSet } from './poll-set.ts';
export {
  addressText,
  decodeAddress,
  hostOf,
  internetAddress,
  localAddress,
  MAX_ADDRESS_BYTES,
  parseAddress,
  parseAddresses,
  resolveHost,
} from './socket-address.ts';
export type { HostPort, SocketAddress } from './socket-address.ts';
export { dialAt, listenAt, listenWithin, tune } from './sockets.ts';
export { SpaceBytes } from './space-bytes.ts';
export type { ByteRange } from './space-bytes.ts';
export type { TlsOptions } from './tls-options.ts';
export { channelOf } from './tls-channel.ts';
export { TlsTunnel } from './tls-tunnel.ts';
export type { TunnelListening, TunnelOptions } from './tls-tunnel.ts';
export { readTunnelRecord, TUNNEL_RECORD_BYTES, writeTunnelRecord } from './tunnel-messages.ts';
export type { ChannelRecord, DialRecord } from './tunnel-messages.ts';
