/**
 * What the caller and the communication thread tell each other, as plain data. Regions travel as places in the memory
 * that both share. Invariant: commands are taken in the order in which they were posted.
 */
import type {
  AllGatherOptions,
  AllReduceOptions,
  AllToAllOptions,
  BroadcastOptions,
  CollectiveOptions,
  GroupCosts,
  MeasureOptions,
  ReduceOptions,
  ReduceScatterOptions,
} from '../collectives/index.ts';
import type { LinkCommand, LinkReport, PackedError, ThreadLink } from '../base/index.ts';
import type { ClusterEvents, Group } from '../cluster/index.ts';
import type { DType, SegmentRange, WasmMemory } from '../memory/index.ts';
import type { StallReport } from '../progress/index.ts';
import type { PlainOptions } from './options.ts';
import type { MessagePort } from 'node:worker_threads';

export interface PackedRegion {
  readonly dtype: DType;
  readonly byteOffset: number;
  readonly length: number;
  /** The number of the segment around it as it was announced; 0 for private memory. */
  readonly segment: number;
}

type Sendable<Options> = Omit<Options, 'signal' | 'codec'>;

/** A codec without its residual, which comes as a region of its own. */
export type PackedCodec =
  | { readonly kind: 'fp16' | 'bf16' }
  | { readonly kind: '1bit' | '2bit'; readonly threshold: number }
  | { readonly kind: 'topk'; readonly k: number };

/** The options of each collective, as they are sent. */
export interface CallOptions {
  readonly allReduce: Sendable<AllReduceOptions> & {
    readonly codec?: PackedCodec | undefined;
    readonly residual?: PackedRegion | undefined;
  };
  readonly reduceScatter: Sendable<ReduceScatterOptions>;
  readonly allGather: Sendable<AllGatherOptions>;
  readonly allToAll: Sendable<AllToAllOptions>;
  readonly broadcast: Sendable<BroadcastOptions>;
  readonly reduce: Sendable<ReduceOptions>;
  readonly barrier: Sendable<CollectiveOptions>;
  readonly join: Sendable<Omit<CollectiveOptions, 'tag'>>;
}
export type CollectiveName = keyof CallOptions;

export interface CallCommand<Name extends CollectiveName = CollectiveName> {
  readonly kind: 'call';
  readonly collective: Name;
  readonly slot: number;
  readonly group: number;
  readonly regions: readonly PackedRegion[];
  readonly options: CallOptions[Name];
}

/** What is asked and answered once. */
export interface Requests {
  readonly group: { readonly ask: { readonly ranks: readonly number[] }; readonly answer: WorldView };
  readonly regroup: { readonly ask: object; readonly answer: WorldView };
  readonly closeGroup: { readonly ask: { readonly group: number }; readonly answer: undefined };
  readonly costs: { readonly ask: { readonly group: number }; readonly answer: GroupCosts | undefined };
  readonly measureCosts: {
    readonly ask: { readonly group: number; readonly options: Omit<MeasureOptions, 'signal'> };
    readonly answer: GroupCosts;
  };
  readonly forget: { readonly ask: { readonly segments: readonly number[] }; readonly answer: undefined };
  readonly close: { readonly ask: object; readonly answer: undefined };
  readonly abort: { readonly ask: { readonly error: PackedError }; readonly answer: undefined };
}
export type RequestName = keyof Requests;

export type Command =
  | CallCommand
  | { readonly kind: 'cancel'; readonly slot: number }
  /** While joining, nothing else is sent. */
  | { readonly kind: 'give up joining' }
  | SegmentNews;

/** Named segments that the thread may find regions in, and their ends. */
export type SegmentNews =
  | { readonly kind: 'adopt'; readonly segment: number; readonly range: SegmentRange }
  | { readonly kind: 'forget'; readonly segment: number };

export type CommunicationLink = ThreadLink<Command, Report, Requests>;

/** What the thread gets. */
export type ThreadCommand = Command | LinkCommand<Requests>;

/** A group as the caller sees it. */
export interface WorldView {
  readonly id: number;
  readonly rank: number;
  readonly size: number;
  /** The host of each rank; ranks of one host share memory where the transport can. */
  readonly hosts: readonly string[];
  /** Member numbers of the cluster in rank order. */
  readonly members: readonly number[];
}

export interface ThreadEvents extends Omit<ClusterEvents, 'formed'> {
  /** An operation has waited long; who is missing and who waits for whom. */
  stalled: [report: StallReport];
  /** A new world was formed. */
  formed: [
    event: { readonly group: WorldView; readonly added: readonly number[]; readonly lost: readonly number[] },
  ];
}

export type EventReport = {
  [Name in keyof ThreadEvents]: {
    readonly kind: 'event';
    readonly name: Name;
    readonly event: ThreadEvents[Name][0];
  };
}[keyof ThreadEvents];

export type Report =
  /** Posted before the slot says that the operation failed. */
  | { readonly kind: 'failure'; readonly slot: number; readonly error: PackedError }
  | {
      readonly kind: 'joined';
      readonly world: WorldView;
      readonly transport: string;
      readonly inPlace: boolean;
    }
  | { readonly kind: 'log'; readonly line: string }
  | EventReport;

/** What the thread says. */
export type ThreadReport = Report | LinkReport;

export interface ThreadData {
  readonly port: MessagePort;
  readonly words: SharedArrayBuffer;
  readonly memory: WasmMemory;
  readonly join: PlainOptions;
}

export function viewOf({ id, rank, size, hosts, members }: Group): WorldView {
  return { id, rank, size, hosts, members };
}
