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
export { costFunction, linearCost, measuredCost } from './exchange-costs.ts';
export type { CostPoint, ExchangeCost, LinearCost } from './exchange-costs.ts';
export { iterationMs, messagesOf, timeline } from './merge-schedule.ts';
export type { Grouping, Interval, MergeLayer, MergeProblem, Message } from './merge-schedule.ts';
export { optimalGroups } from './optimal-groups.ts';
export {
  algorithmOne,
  allInOne,
  DEFAULT_BUCKET_BYTES,
  fixedBuckets,
  layerByLayer,
} from './merge-baselines.ts';
export { linkBytes, transferBytes } from './transfer-amounts.ts';
export type { ExchangeMethod, LinkLoad, Machines, ParameterKind, TransferLoad } from './transfer-amounts.ts';
export { chooseRoutes } from './routes.ts';
export type { ClusterShape, ExchangeCosts, PlannedParameter, Route, RouteChoice } from './routes.ts';
export type { RouteOptions, Strategy } from './routes.ts';
export type { PlannedLayer, RoutedMessage } from './step-time.ts';
export { planExchange } from './exchange-plan.ts';
export type {
  ExchangeInput,
  ExchangePlan,
  GroupPlan,
  Merging,
  ParameterPlan,
  Prediction,
  TriedRoutes,
} from './exchange-plan.ts';
export { finalists, recordOf } from './finalists.ts';
export type { Finalist } from './finalists.ts';
export { hasDrifted, recalibrated } from './drift.ts';
export type { MeasuredIteration } from './drift.ts';
export { namesInShort, STEP_OPERATIONS } from './step-operations.ts';
export type { OnPart, StepOperation } from './step-operations.ts';
export { dependenciesOf, lastOfLanes } from './operation.ts';
export type { Operation, OperationLane, StepProgram } from './operation.ts';
export { clientProgram, stepProgram } from './step-program.ts';
export type { ClientFacts } from './step-program.ts';
export type { StepFacts } from './step-parts.ts';
