export { Aggregator } from './aggregation.ts';
export type { Aggregation, Combine } from './aggregation.ts';
export type { Consistency } from './consistency.ts';
export type { DensePush, PushReply, RowsPush } from './contribution.ts';
export type { ChunkRange, KeyOptions } from './key.ts';
export { checkOperations } from './key-operations.ts';
export { ServerCore } from './server-core.ts';
export type { RowsMode, ServerCoreOptions } from './server-core.ts';
export { accumulationRule, optimizerRule } from './update-rule.ts';
export type { ChunkUpdate, RowsUpdate, Updater, UpdateRule } from './update-rule.ts';
export type { Common } from './durability/index.ts';
export { SERVER_PURPOSE } from './cores/stranger.ts';
export { ParameterServer } from './parameter-server.ts';
export { readListenAddresses } from './listen-address.ts';
export type { ListenAddress } from './listen-address.ts';
export type { ParameterServerOptions } from './parameter-server.ts';
export type { ServiceOptions } from './service-options.ts';
export { processorsFor, readProcessors } from './processors.ts';
export { accessBySecret } from './service-access.ts';
export type { ServiceAccess } from './service-access.ts';
export { MAX_RANGES, runsOf } from './wire/chunk-runs.ts';
export { MEMBER_LIMITS, ProtocolFault, STRANGER_LIMITS } from './wire/frame.ts';
export { MessageStream, StreamResources } from './wire/message-stream.ts';
export type { Header, Incoming, StreamUser } from './wire/message-stream.ts';
export type { FirstValues } from './wire/first-values.ts';
export { behindIndices, MAX_STEPS, readWelcome, SERVER_PROTOCOL_VERSION } from './wire/messages.ts';
export type {
  KeyShape,
  ListEntry,
  PieceResult,
  PieceShape,
  Place,
  Request,
  ServiceSettings,
  SharedRows,
  Welcome,
} from './wire/messages.ts';
export { joined, windowOf } from './wire/scattered-bytes.ts';
export { segmentPrefix } from './wire/segment-names.ts';
export { keptServicesFile } from './administration/kept-services.ts';
export { createServices, endServices, listServices } from './administration/many-servers.ts';
export type { OfServer } from './administration/many-servers.ts';
export type { AdministratorOptions } from './administration/client.ts';
export type { CreatedService, EndedService, ListedService, RequestedService } from './wire/administration.ts';
