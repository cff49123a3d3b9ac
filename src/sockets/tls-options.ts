/**
 * What a process needs to speak TLS with its peers: plain data, since it goes to a thread. Both sides show certificates.
 * Invariant: nothing here is ever logged.
 */
export interface TlsOptions {
  /** The private key of this process, PEM. */
  readonly key: string;
  /** The certificate of this process, PEM; signed by `ca`. */
  readonly cert: string;
  /** The certificates of those who may sign for members, PEM. Both sides are checked. */
  readonly ca: string;
  /**
   * The name that the certificate of whoever is dialled must have, the scheduler included: one for all, where certificates are
   * not made for each address. Default: the address or name that is dialled.
   */
  readonly serverName?: string | undefined;
}
