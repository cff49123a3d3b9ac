/**
 * Certificates for tests, made by the openssl command: an authority of its own for each name, and one certificate that it
 * signed. Invariant: everything lies in the folder that the test gave, which the test removes.
 */
import { execFileSync, spawnSync } from 'node:child_process';
import { readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import type { TlsOptions } from '../../src/sockets/index.ts';

export const hasOpenssl = spawnSync('openssl', ['version']).status === 0;

/** Where the files are that `makeCertificates` wrote. */
export interface CertificateFiles {
  readonly key: string;
  readonly cert: string;
  readonly ca: string;
}

/** `names` are those that the certificate is good for. Default: this host by its address, and `<name>.tributary`. */
export function makeCertificates(
  folder: string,
  name: string,
  names: readonly string[] = ['IP:127.0.0.1', `DNS:${name}.tributary`],
): TlsOptions & { readonly files: CertificateFiles } {
  const path = (kind: string): string => join(folder, `${name}-${kind}.pem`);
  const openssl = (args: string): void =>
    void execFileSync('openssl', args.split(' '), { stdio: ['ignore', 'ignore', 'pipe'] });
  const newKey = '-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes';
  openssl(`req -x509 ${newKey} -subj /CN=${name} -keyout ${path('ca-key')} -out ${path('ca')} -days 2`);
  openssl(`req ${newKey} -subj /CN=member-${name} -keyout ${path('key')} -out ${path('request')}`);
  writeFileSync(path('extensions'), `subjectAltName=${names.join(',')}\n`);
  const signer = `-CA ${path('ca')} -CAkey ${path('ca-key')} -CAcreateserial -days 2`;
  openssl(`x509 -req -in ${path('request')} ${signer} -extfile ${path('extensions')} -out ${path('cert')}`);
  const files = { key: path('key'), cert: path('cert'), ca: path('ca') };
  const read = (file: string): string => readFileSync(file, 'utf8');
  return { key: read(files.key), cert: read(files.cert), ca: read(files.ca), files };
}
