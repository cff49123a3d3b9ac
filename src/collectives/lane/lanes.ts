/**
 * The lanes of groups: made by the first rank when it is first used, found by the others, closed with the group. Groups
 * that cannot have one have none. Invariant: a rank without a lane takes the ordinary way, on which the others follow.
 */
import type { Group } from '../../cluster/index.ts';
import { TributaryError } from '../../base/index.ts';
import type { Segment } from '../../memory/index.ts';
import { Lane } from './lane.ts';
import { LANE_BYTES, MAX_RANKS } from './layout.ts';

/** How often the lane is looked for before the group does without. */
const ATTEMPTS = 64;

interface Search {
  lane: Lane | undefined;
  attempts: number;
}

const searches = new WeakMap<Group, Search>();

export function laneOf(group: Group): Lane | undefined {
  const search = searches.get(group) ?? begin(group);
  if (search.lane === undefined && search.attempts > 0) look(group, search);
  return search.lane;
}

function begin(group: Group): Search {
  const { size, hosts, progress } = group;
  const possible =
    size > 1 &&
    size <= MAX_RANKS &&
    hosts.every((host) => host === hosts[0]) &&
    progress.transport.inPlace?.mapsNamedSegments === true;
  const search = { lane: undefined, attempts: possible ? ATTEMPTS : 0 };
  searches.set(group, search);
  return search;
}

function look(group: Group, search: Search): void {
  search.attempts--;
  const segment = find(group);
  if (!segment) return;
  const lane = new Lane(group, segment);
  search.lane = lane;
  group.onClose(() => {
    search.lane = undefined;
    search.attempts = 0;
    lane.close();
  });
}

function find(group: Group): Segment | undefined {
  const name = `lane-${group.key}`;
  try {
    return group.rank === 0 ? group.space.createSegment(name, LANE_BYTES) : group.space.attachSegment(name);
  } catch (error) {
    // Not there yet, or no room for it: the ordinary way needs neither.
    if (error instanceof TributaryError) return undefined;
    throw error;
  }
}
