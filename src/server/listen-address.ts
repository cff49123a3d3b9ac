/**
 * Where a server listens: one address, or those of several network interfaces (PHub, section 3.3),
 * each core at all of them. Pure. Invariant: what passes `checkListen` can be told to a worker in
 * one short message.
 */
import { UsageError } from '../base/index.ts';
import { addressText, parseAddress } from '../sockets/index.ts';

/** Network interfaces of one machine. */
const MAX_ADDRESSES = 16;
/** All of them are in the answer to a worker, which reads a short one only. */
const MAX_PORTS = 768;

export interface ListenAddress {
  readonly address: string;
  /** Of the first core; the others have those that follow. 0: any that the system gives. */
  readonly port: number;
}

/** 'host:port', several in a text with commas between them. */
export function readListenAddresses(texts: readonly string[]): readonly ListenAddress[] {
  return texts
    .flatMap((text) => text.split(','))
    .map((text) => {
      const { host, port } = parseAddress(text.trim(), 0);
      return { address: host, port };
    });
}

export function checkListen(listen: readonly ListenAddress[], cores: number): void {
  const texts = listen.map(({ address, port }) => addressText(address, port));
  const twice = listen.findIndex(({ port }, i) => port !== 0 && texts.indexOf(texts[i]!) !== i);
  const fault =
    twice >= 0
      ? `a server cannot listen twice at ${texts[twice]}; give each address once`
      : listen.length === 0 || listen.length > MAX_ADDRESSES
        ? `a server listens at 1 to ${MAX_ADDRESSES} addresses, not at ${listen.length}`
        : listen.length > 1 && cores * listen.length > MAX_PORTS
          ? `${cores} cores at ${listen.length} addresses are ${cores * listen.length} ports, more than ${MAX_PORTS}; use fewer cores or addresses`
          : undefined;
  if (fault !== undefined) throw new UsageError('INVALID_ARGUMENT', fault, { cores, listen });
}
