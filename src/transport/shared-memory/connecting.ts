/**
 * How two members find each other: each knows the other's control block by its address, makes the ring to it under a
 * name that both can work out, and attaches the ring from it as soon as it is there. Nothing is sent here. Invariant:
 * an address is checked before any of it is used; a failed attempt leaves no segment behind.
 */
import { setTimeout as pause } from 'node:timers/promises';
import { PeerError } from '../../base/index.ts';
import type { ErrorCode } from '../../base/index.ts';
import { isAlive } from '../../memory/index.ts';
import type { ProcessIdentity, Segment, SharedSpace } from '../../memory/index.ts';
import type { MemberAddress } from '../transport.ts';
import { Control } from './control.ts';
import { CONTROL_BYTES, LAYOUT_VERSION, RING_DATA_BYTES } from './layout.ts';
import type { LinkParts } from './link.ts';
import { ringFault, RingReader, RingWriter } from './ring.ts';

const PAUSE_MS = 1;
const SUFFIX_CHARACTERS = 16;
const CONTROL_NAME = /^[A-Za-z0-9._-]{1,40}-[0-9a-f]{16}$/;
const DIGITS = /^\d{1,19}$/;

/** What a member says of itself; plain data, so numbers beyond 2^53 are texts. */
export function describeSelf(controlName: string, self: ProcessIdentity): Readonly<Record<string, unknown>> {
  return {
    version: LAYOUT_VERSION,
    control: controlName,
    pid: self.pid,
    startTicks: String(self.startTicks),
    pidNamespace: String(self.pidNamespace),
  };
}

export interface Surroundings {
  readonly space: SharedSpace;
  readonly directory: string;
  readonly ringBytes: number;
  readonly ownControlName: string;
}

/** A peer whose ring has not been found yet. */
interface Candidate {
  readonly peer: MemberAddress;
  readonly controlName: string;
  readonly identity: ProcessIdentity;
  readonly control: Control;
  readonly outgoing: Segment;
  incoming: Segment | undefined;
}

export async function reachPeers(
  peers: readonly MemberAddress[],
  surroundings: Surroundings,
  options: { readonly timeoutMs: number; readonly signal?: AbortSignal | undefined },
): Promise<LinkParts[]> {
  const candidates: Candidate[] = [];
  const deadline = performance.now() + options.timeoutMs;
  try {
    for (const peer of peers) candidates.push(openWay(peer, surroundings));
    for (;;) {
      for (const candidate of candidates) candidate.incoming ??= findRing(candidate, surroundings);
      const missing = candidates.find(({ incoming }) => incoming === undefined);
      if (!missing) break;
      if (options.signal?.aborted) {
        throw refusal('CANCELLED', missing.peer, 'was being connected when the caller cancelled', {
          nextStep: 'connect again when it is wanted',
          cause: options.signal.reason,
        });
      }
      if (performance.now() > deadline) {
        throw refusal(
          'UNREACHABLE',
          missing.peer,
          `did not open its side of the connection within ${options.timeoutMs} ms`,
          { nextStep: 'check that it runs and connects to this member, or raise connectTimeoutMs' },
        );
      }
      await pause(PAUSE_MS);
    }
  } catch (error) {
    for (const { control, outgoing, incoming } of candidates) {
      control.segment.close();
      outgoing.close();
      incoming?.close();
    }
    throw error;
  }
  return candidates.map(({ peer, identity, control, outgoing, incoming }) => ({
    member: peer.member,
    title: peer.title,
    identity,
    control,
    writer: new RingWriter(outgoing),
    reader: new RingReader(incoming!),
  }));
}

function openWay(peer: MemberAddress, surroundings: Surroundings): Candidate {
  const { space, directory, ringBytes, ownControlName } = surroundings;
  const { controlName, identity } = parseAddress(peer);
  let segment: Segment;
  try {
    segment = space.attachSegment(controlName, { directory });
  } catch (cause) {
    throw refusal('UNREACHABLE', peer, `has no control segment '${controlName}' here`, {
      nextStep: 'check that it is alive and shares the shared-memory folder with this process',
      cause,
    });
  }
  if (segment.byteLength < CONTROL_BYTES) {
    segment.close();
    throw refusal('PROTOCOL_VIOLATION', peer, `has a control segment of only ${segment.byteLength} bytes`);
  }
  try {
    const name = ringName(ownControlName, controlName);
    // The control segment was made with a sweep; one for each of n * n rings would take seconds.
    const options = { directory, sweep: false };
    const outgoing = space.createSegment(name, RING_DATA_BYTES + ringBytes, options);
    return { peer, controlName, identity, control: new Control(segment), outgoing, incoming: undefined };
  } catch (error) {
    segment.close();
    throw error;
  }
}

/** The ring from the peer, or undefined when it has not made it yet. */
function findRing(candidate: Candidate, surroundings: Surroundings): Segment | undefined {
  const { peer, controlName, control, identity } = candidate;
  const { space, directory, ownControlName } = surroundings;
  let segment: Segment;
  try {
    segment = space.attachSegment(ringName(controlName, ownControlName), { directory });
  } catch (cause) {
    if ((cause as { code?: unknown }).code !== 'SEGMENT_NOT_FOUND') throw cause;
    if (!control.isOpen) throw refusal('PEER_LOST', peer, 'left before it was connected');
    if (!isAlive(identity)) throw refusal('PEER_LOST', peer, 'died before it was connected');
    return undefined;
  }
  const fault = ringFault(segment);
  if (fault === undefined) return segment;
  segment.close();
  throw refusal('PROTOCOL_VIOLATION', peer, `cannot be used: ${fault}`);
}

/** Both names end with something random, so that no two pairs of members share a ring. */
function ringName(from: string, to: string): string {
  return `${from}-to-${to.slice(-SUFFIX_CHARACTERS)}`;
}

function parseAddress(peer: MemberAddress): { controlName: string; identity: ProcessIdentity } {
  const { version, control, pid, startTicks, pidNamespace } = peer.address;
  if (version !== LAYOUT_VERSION) {
    throw refusal(
      'REFUSED',
      peer,
      `uses version ${String(version)} of the shared-memory layout, this process ${LAYOUT_VERSION}`,
      {
        nextStep: 'run one version of Tributary everywhere',
      },
    );
  }
  const whole = typeof pid === 'number' && Number.isInteger(pid) && pid > 0 && pid < 2 ** 31;
  const named = typeof control === 'string' && CONTROL_NAME.test(control);
  const timed =
    typeof startTicks === 'string' &&
    DIGITS.test(startTicks) &&
    typeof pidNamespace === 'string' &&
    DIGITS.test(pidNamespace);
  if (!whole || !named || !timed) {
    throw refusal(
      'PROTOCOL_VIOLATION',
      peer,
      `has the address ${JSON.stringify(peer.address).slice(0, 300)}, which no shared-memory transport gives`,
    );
  }
  const identity = { pid, startTicks: BigInt(startTicks), pidNamespace: BigInt(pidNamespace) };
  return { controlName: control, identity };
}

function refusal(
  code: ErrorCode,
  peer: MemberAddress,
  what: string,
  { nextStep = 'start it again and connect anew', cause }: { nextStep?: string; cause?: unknown } = {},
): PeerError {
  const message = `member ${peer.member} (${peer.title}) ${what}; ${nextStep}`;
  return new PeerError(code, message, { member: peer.member, title: peer.title }, cause);
}
