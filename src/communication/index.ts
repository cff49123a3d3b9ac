export { CommunicationThread } from './communication-thread.ts';
export type { CommunicationEvents, OnGroup } from './communication-thread.ts';
export { AnnouncedSegments } from './announced-segments.ts';
export { ThreadRegions } from './thread-regions.ts';
export type { PackedRegion, SegmentNews, WorldView } from './messages.ts';
export type { CommunicationOptions, MpiCommunicationOptions } from './options.ts';
export type { OperationTimes } from './shared-words.ts';
export type { TimedHandle } from './thread-handle.ts';
