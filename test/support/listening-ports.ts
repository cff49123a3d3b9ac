/** The TCP ports at which this process listens, in whatever thread, and whether they speak TLS. */
import { readdirSync, readFileSync, readlinkSync } from 'node:fs';
import { connect } from 'node:tls';

const LISTENING = '0A';

export function listeningPorts(): number[] {
  const inodes = new Set(
    readdirSync('/proc/self/fd').flatMap((fd) => {
      try {
        return /^socket:\[(\d+)\]$/.exec(readlinkSync(`/proc/self/fd/${fd}`))?.[1] ?? [];
      } catch {
        return [];
      }
    }),
  );
  return readFileSync('/proc/net/tcp', 'utf8')
    .trim()
    .split('\n')
    .slice(1)
    .map((line) => line.trim().split(/\s+/))
    .filter((fields) => fields[3] === LISTENING && inodes.has(fields[9]!))
    .map((fields) => parseInt(fields[1]!.split(':')[1]!, 16));
}

/** Whether a TLS handshake gets as far as the certificate of the other side. */
export function speaksTls(port: number): Promise<boolean> {
  return new Promise((resolve) => {
    const socket = connect({ host: '127.0.0.1', port, rejectUnauthorized: false });
    const end = (is: boolean): void => {
      resolve(is);
      socket.destroy();
    };
    socket.once('secureConnect', () => end(true));
    socket.once('error', () => end(false));
    socket.once('close', () => end(false));
  });
}
