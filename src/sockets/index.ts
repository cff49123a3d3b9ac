export { answer, challenge, isNonce, verify } from './credentials.ts';
export type { Exchange, Role } from './credentials.ts';
export { systemHost } from './host.ts';
export type { Host } from './host.ts';
export * from './libc.ts';
export { PollSet } from './poll-set.ts';
export {
  addressText,
  decodeAddress,
  internetAddress,
  localAddress,
  MAX_ADDRESS_BYTES,
  resolveHost,
} from './socket-address.ts';
export type { SocketAddress } from './socket-address.ts';
export { dialAt, listenAt, listenWithin, tune } from './sockets.ts';
export { SpaceBytes } from './space-bytes.ts';
export type { ByteRange } from './space-bytes.ts';
export type { TlsOptions } from './tls-options.ts';
export { readTunnelRecord, TUNNEL_RECORD_BYTES, writeTunnelRecord } from './tls-tunnel-thread.ts';
export { TlsTunnel } from './tls-tunnel.ts';
export type { TunnelOptions } from './tls-tunnel.ts';
