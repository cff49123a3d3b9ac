/**
 * A group: some members of the cluster in rank order, who run collectives together. It holds what collectives need and
 * decides nothing. Several groups may be open at once and may overlap. Invariant: the members of a group never
 * change; when one is lost the group is broken, and a new one is formed from those that are left.
 */
import { createHash } from 'node:crypto';
import type { PeerError } from '../base/index.ts';
import type { Kernels } from '../kernels/index.ts';
import type { SharedSpace } from '../memory/index.ts';
import type { Members, Progress } from '../progress/index.ts';
import type { MemberAddress } from '../transport/index.ts';

export class Group implements Members {
  readonly id: number;
  readonly members: readonly number[];
  readonly rank: number;
  readonly size: number;
  /** The host of each rank; ranks of one host share memory where the transport can. */
  readonly hosts: readonly string[];
  readonly progress: Progress;
  readonly kernels: Kernels;
  /** A name that only the ranks of this group have: for memory that they share, where they share memory. */
  readonly key: string;
  readonly #titles: readonly string[];
  readonly #onClose: (() => void)[] = [];

  constructor(id: number, members: readonly MemberAddress[], progress: Progress, kernels: Kernels) {
    this.id = id;
    this.members = members.map(({ member }) => member);
    this.rank = this.members.indexOf(progress.transport.member);
    this.size = members.length;
    this.hosts = members.map(({ host }) => host);
    this.#titles = members.map(({ title }) => title);
    this.progress = progress;
    this.kernels = kernels;
    const identity = JSON.stringify([id, members.map(({ member, address }) => [member, address])]);
    this.key = createHash('sha256').update(identity).digest('hex').slice(0, 32);
    progress.register(this);
  }

  get space(): SharedSpace {
    return this.progress.transport.space;
  }

  /** Why the group can no longer be used: a member was lost. Undefined as long as it can. */
  get broken(): PeerError | undefined {
    return this.progress.broken(this.id);
  }

  title(rank: number): string {
    return `rank ${rank} (${this.#titles[rank] ?? 'unknown'})`;
  }

  /** Has something done when the group ends. */
  onClose(action: () => void): void {
    this.#onClose.push(action);
  }

  /** Ends the group on this rank; operations under way fail. May be called again. */
  close(): void {
    this.progress.dissolve(this.id);
    for (const action of this.#onClose.splice(0)) action();
  }
}
