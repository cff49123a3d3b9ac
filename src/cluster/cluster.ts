/**
 * A process in a cluster: its transport, its engine, the world of all members as a group, and the making of further
 * groups. It does not choose the transport (the launcher does) and starts no processes. Invariant: every member of a
 * group that this gives out can be reached, and all of them know the group by the same id.
 */
import { EventEmitter } from 'node:events';
import { createHash, randomBytes } from 'node:crypto';
import { cpus } from 'node:os';
import { PeerError, UsageError } from '../base/index.ts';
import { Kernels } from '../kernels/index.ts';
import { bytesPerElement } from '../memory/index.ts';
import type { DType, Region, Segment, SharedSpace } from '../memory/index.ts';
import { Progress } from '../progress/index.ts';
import type { ProgressOptions } from '../progress/index.ts';
import type { TlsOptions } from '../sockets/index.ts';
import type { MemberAddress, Transport } from '../transport/index.ts';
import { Group } from './group.ts';
import type { JoinOptions } from './joining.ts';
import { Membership } from './membership.ts';
import type { LeaveReason, World } from './messages.ts';

/** The id of the world without a scheduler. */
const WORLD = 1;

export interface ClusterOptions extends Omit<JoinOptions, 'address' | 'tls'>, ProgressOptions {
  /** With what the transport is encrypted and the scheduler is trusted. Default: none. */
  readonly tls?: TlsOptions | undefined;
  /** Longest wait until all members can be reached, in milliseconds. Default 30,000. */
  readonly connectTimeoutMs?: number | undefined;
}

export interface ClusterEvents {
  /** A member is gone. Groups that it was in are broken. */
  left: [event: { readonly member: number; readonly title: string; readonly reason: LeaveReason }];
  /** A process waits to be taken in by the next `regroup`. */
  waiting: [event: { readonly title: string; readonly newcomers: number }];
  /** A new world was formed. */
  formed: [
    event: { readonly group: Group; readonly added: readonly number[]; readonly lost: readonly number[] },
  ];
  /** New groups can no longer be formed; those that exist go on. */
  'scheduler-lost': [event: { readonly reason: string }];
}

export class Cluster extends EventEmitter<ClusterEvents> {
  readonly transport: Transport;
  readonly progress: Progress;
  readonly kernels: Kernels;
  readonly #membership: Membership | undefined;
  readonly #segments: Segment[] = [];
  readonly #connectTimeoutMs: number;
  readonly #groups = new Set<Group>();
  /** Whether this process was taken into a world that others had formed before. */
  readonly isNewcomer: boolean;
  readonly #yields: boolean | undefined;
  /** Private, so that nobody who prints a cluster prints its key. */
  readonly #tls: TlsOptions | undefined;
  #world: Group;
  #members: readonly MemberAddress[];
  /** Without a scheduler: how often each list of members was made a group. */
  readonly #timesFormed = new Map<string, number>();

  /** Joins through the scheduler; resolves when all members can be reached. */
  static async join(transport: Transport, options: ClusterOptions): Promise<Cluster> {
    const connectTimeoutMs = options.connectTimeoutMs ?? 30_000;
    const { tls } = options;
    const membership = await Membership.join({
      ...{ ...options, address: transport.address },
      tls: tls && { ca: tls.ca, ...(tls.serverName === undefined ? {} : { servername: tls.serverName }) },
    });
    try {
      await connect(transport, membership, membership.world, connectTimeoutMs, options.signal);
      return new Cluster(transport, membership.world, options, connectTimeoutMs, membership, tls);
    } catch (error) {
      await membership.abort();
      throw error;
    }
  }

  /** The members that another launcher, such as mpirun, has brought together: fixed for the life of the processes. */
  static async ofFixed(
    transport: Transport,
    members: readonly MemberAddress[],
    options: ProgressOptions = {},
  ): Promise<Cluster> {
    const peers = members.filter(({ member }) => member !== transport.member);
    await transport.connect(transport.member, peers);
    const added = members.map(({ member }) => member);
    return new Cluster(transport, { group: WORLD, members, added, lost: [] }, options, 30_000, undefined);
  }

  private constructor(
    transport: Transport,
    world: World,
    options: ProgressOptions,
    connectTimeoutMs: number,
    membership: Membership | undefined,
    tls?: TlsOptions,
  ) {
    super();
    this.#tls = tls;
    this.transport = transport;
    this.progress = new Progress(transport, options);
    this.#yields = options.yieldWhileSpinning;
    this.isNewcomer = world.added.length < world.members.length;
    this.kernels = Kernels.create(transport.space);
    this.#connectTimeoutMs = connectTimeoutMs;
    this.#membership = membership;
    this.#members = world.members;
    this.#world = this.#open(world.group, world.members);
    this.#mindCores();
    if (membership) this.#follow(membership);
  }

  get space(): SharedSpace {
    return this.transport.space;
  }

  /** With what connections of this cluster are encrypted, for what is opened beside them; undefined: they are not. */
  get tls(): TlsOptions | undefined {
    return this.#tls;
  }

  /** All members; after a loss, those of the last `regroup`. */
  get world(): Group {
    return this.#world;
  }

  /** Memory that peers on this host read in place; regions elsewhere are copied. Freed by `close`. */
  allocate<T extends DType>(dtype: T, length: number): Region<T> {
    const bytes = length * bytesPerElement(dtype);
    const segment = this.transport.inPlace
      ? this.space.createSegment(`region-${process.pid}-${randomBytes(6).toString('hex')}`, bytes)
      : this.space.allocate(bytes);
    this.#segments.push(segment);
    return segment.allocate(dtype, length);
  }

  /** A group of some ranks of the world, in this order; every one of them must ask for the same list. */
  async group(ranks: readonly number[]): Promise<Group> {
    const members = ranks.map((rank) => {
      const member = this.#world.members[rank];
      if (member !== undefined) return this.#members.find((known) => known.member === member)!;
      throw new UsageError(
        'INVALID_ARGUMENT',
        `rank ${rank} is not in the world of ${this.#world.size} ranks; give ranks from 0 to ${this.#world.size - 1}`,
        { ranks, size: this.#world.size },
      );
    });
    const id = await this.#formId(members.map(({ member }) => member));
    return this.#open(id, members);
  }

  /** Forms the world anew from all who live, newcomers included; every living member must ask. Old groups end. */
  async regroup(): Promise<Group> {
    const membership = this.#withMembership('regroup');
    const before = this.#world;
    const world = await membership.regroup();
    for (const member of before.members) {
      if (world.members.some((one) => one.member === member)) continue;
      this.progress.giveUp(member, lost(membership, member));
      this.transport.disconnect(member);
    }
    await connect(this.transport, membership, world, this.#connectTimeoutMs);
    this.#closeGroups();
    this.#members = world.members;
    this.#world = this.#open(world.group, world.members);
    this.#mindCores();
    this.emit('formed', { group: this.#world, added: world.added, lost: world.lost });
    return this.#world;
  }

  /** How many processes wait to be taken in by `regroup`; true at once, also while this thread is blocked. */
  get newcomers(): number {
    return this.#membership?.liveness.newcomers ?? 0;
  }

  /** Finishes what was sent, says goodbye and gives everything back. */
  async close(): Promise<void> {
    this.#closeGroups();
    this.progress.close();
    await this.transport.close();
    await this.#membership?.leave();
    for (const segment of this.#segments) segment.close();
  }

  /** Gives everything back at once; the others see this process as lost. */
  async abort(error: Error): Promise<void> {
    this.#closeGroups();
    this.progress.close();
    this.transport.abort(error);
    await this.#membership?.abort();
    for (const segment of this.#segments) segment.close();
  }

  #open(id: number, members: readonly MemberAddress[]): Group {
    const group = new Group(id, members, this.progress, this.kernels);
    this.#groups.add(group);
    group.onClose(() => this.#groups.delete(group));
    return group;
  }

  #closeGroups(): void {
    for (const group of [...this.#groups]) group.close();
  }

  async #formId(members: readonly number[]): Promise<number> {
    if (this.#membership) return this.#membership.form(members);
    const { member } = this.transport;
    if (new Set(members).size < members.length || !members.includes(member)) {
      throw new UsageError(
        'INVALID_ARGUMENT',
        `rank ${member} asked for a group of ranks ${members.join(', ')}; give different ranks, its own among them`,
        { rank: member, ranks: members },
      );
    }
    // Without a scheduler its members come to the same id by themselves, whatever other groups each of them is in.
    const list = members.join();
    const times = (this.#timesFormed.get(list) ?? 0) + 1;
    this.#timesFormed.set(list, times);
    return groupIdOf(list, times);
  }

  /** With more members on this host than cores, those who wait let others run, unless the caller decided otherwise. */
  #mindCores(): void {
    const { hosts, rank } = this.#world;
    const here = hosts.filter((host) => host === hosts[rank]).length;
    // All cores of the machine: a process that is bound to one has it to itself.
    this.progress.yieldsWhileSpinning = this.#yields ?? here > cpus().length;
  }

  #withMembership(what: string): Membership {
    if (this.#membership) return this.#membership;
    throw new UsageError(
      'INVALID_ARGUMENT',
      `${what} needs a scheduler; processes started by mpirun or srun stay as they are: restart the job, or start the cluster with a scheduler`,
      { transport: this.transport.kind },
    );
  }

  #follow(membership: Membership): void {
    membership.on('left', (event) => this.emit('left', event));
    membership.on('joined', (event) => this.emit('waiting', event));
    membership.on('scheduler-lost', (event) => this.emit('scheduler-lost', event));
    let epoch = membership.epoch;
    this.progress.watch(() => {
      if (membership.epoch === epoch) return [];
      epoch = membership.epoch;
      // Who said goodbye may have sent what is still on its way; the transport tells when nothing more will come.
      return this.#world.members
        .filter((member) => isDeath(membership.liveness.reasonOf(member)))
        .map((member) => ({ member, error: lost(membership, member) }));
    });
  }
}

/** The same for the same list and count; two groups get the same one by a chance of one in two thousand million. */
function groupIdOf(list: string, times: number): number {
  const digest = createHash('sha256').update(`${list} ${times}`).digest();
  return WORLD + 1 + (digest.readUInt32LE(0) % (2 ** 31 - 2));
}

async function connect(
  transport: Transport,
  membership: Membership,
  world: World,
  connectTimeoutMs: number,
  signal?: AbortSignal,
): Promise<void> {
  const peers = world.members.filter(({ member }) => member !== membership.member);
  await transport.connect(membership.member, peers, { connectTimeoutMs, signal });
  const members = world.members.map(({ member }) => member);
  await membership.barrier(`connected ${world.group}`, members, { timeoutMs: connectTimeoutMs, signal });
}

function isDeath(reason: LeaveReason | undefined): boolean {
  return reason === 'lost' || reason === 'silent';
}

function lost(membership: Membership, member: number): PeerError {
  const reason = membership.liveness.reasonOf(member);
  const how =
    reason === 'silent'
      ? 'has given no sign of life'
      : reason === 'closed'
        ? 'has left the cluster'
        : 'died or lost its connection';
  return new PeerError('PEER_LOST', `${membership.titleOf(member)} ${how}.`, { member });
}
