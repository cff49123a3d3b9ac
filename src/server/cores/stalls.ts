/**
 * Connections whose other side keeps its tenant waiting: in the middle of a message, or by not
 * taking answers. Invariant: time counts from the first turn in which nothing came, and anew after
 * something has.
 */
import { ProtocolFault } from '../wire/frame.ts';
import type { MessageStream } from '../wire/message-stream.ts';
import type { Session } from './session.ts';

export interface Stallable {
  readonly stream: MessageStream;
  /**
   * Since when the other side has neither gone on with its message nor taken answers; undefined: it is
   * not waited for.
   */
  stalledAtMs: number | undefined;
}

/** Of the time in the middle of a message: how long answers may not be taken while their tenant waits for that. */
const DEAF_SHARE = 1 / 6;

/** Why the connection is to be ended; undefined: it goes on, or may still do so. */
export function stallOf(
  connection: Stallable,
  { isPaused, tenant }: Session,
  {
    nowMs,
    isReady,
    isTaking,
    stallTimeoutMs,
  }: {
    readonly nowMs: number;
    /** Something has come. */
    readonly isReady: boolean;
    /** The kernel takes more of the answers. */
    readonly isTaking: boolean;
    readonly stallTimeoutMs: number;
  },
): ProtocolFault | undefined {
  const { stream } = connection;
  const isSilent = !isPaused && !isReady && stream.isInMessage;
  const isDeaf = tenant.limits.isOverUnsent && stream.hasUnsent && !isTaking;
  if (!isSilent && !isDeaf) return void (connection.stalledAtMs = undefined);
  connection.stalledAtMs ??= nowMs;
  const stalledMs = nowMs - connection.stalledAtMs;
  const fault = (what: string) =>
    new ProtocolFault(what, 'let its event loop run more often, or raise stallTimeoutMs of the server');
  if (isDeaf && stalledMs >= stallTimeoutMs * DEAF_SHARE)
    return fault(`did not read its answers for ${Math.round(stalledMs)} ms`);
  if (stalledMs >= stallTimeoutMs)
    return fault(`sent nothing for ${Math.round(stalledMs)} ms in the middle of a message`);
  return undefined;
}
