/** Where everything goes, as frozen and printable data: pure functions, which measure and send nothing. */
export { assignLargestFirst, largestFirstRatio } from './largest-first.ts';
export type { Partition } from './largest-first.ts';
export { cutIntoChunks, DEFAULT_CHUNK_BYTES, ELEMENT_BYTES } from './chunks.ts';
export type { Chunk, Key } from './chunks.ts';
export { placeChunks, printPlacement } from './placement.ts';
export type { PlacedChunk, Placement, ServerLoad, ServerResources } from './placement.ts';
export { placementKinds, serverPlaces } from './server-places.ts';
export type { PlacementKind, ServerHosts } from './server-places.ts';
export { bandwidthLowerBound } from './bandwidth-bounds.ts';
export type { ExchangeLoad } from './bandwidth-bounds.ts';
export { chooseReduction } from './hierarchy.ts';
export type { RackNetwork, ReductionChoice } from './hierarchy.ts';
export { dealInRuns } from './runs.ts';
