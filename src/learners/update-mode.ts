/**
 * Who applies gradients to the shared weights, and whether others are kept out meanwhile. Names and what they mean; no code
 * that depends on them.
 */

/**
 * direct: a learner applies its own gradient, no core is spent on a server. server: a process of its own takes gradients from
 * slots, round robin (GaDei). lock-free: weights are read and written in place whoever else does (HogWild!). locked: a
 * parameter is locked while it is updated or copied; learners compute on a copy, which is renewed when there is something new.
 */
export const UPDATE_MODES = [
  'direct lock-free',
  'direct locked',
  'server lock-free',
  'server locked',
] as const;
export type UpdateMode = (typeof UPDATE_MODES)[number];

/** By the names of `on`; of who did not choose, the default. */
export function updateModeNamed(
  update: 'lock-free' | 'locked' | 'auto',
  appliedBy: 'learner' | 'server' | 'auto',
): UpdateMode {
  const who = appliedBy === 'server' ? 'server' : 'direct';
  return `${who} ${update === 'locked' ? 'locked' : 'lock-free'}`;
}

/** The other way round. */
export function updateModeParts(mode: UpdateMode): {
  readonly update: 'lock-free' | 'locked';
  readonly appliedBy: 'learner' | 'server';
} {
  return {
    update: isLocked(mode) ? 'locked' : 'lock-free',
    appliedBy: hasServer(mode) ? 'server' : 'learner',
  };
}

export function hasServer(mode: UpdateMode): boolean {
  return mode.startsWith('server');
}

export function isLocked(mode: UpdateMode): boolean {
  return mode.endsWith(' locked');
}

/** Gradient slots of a learner whose server applies: one is filled while the other is applied. */
export const SLOTS = 2;
