/**
 * Which execution providers work here. Each one that is compiled in is tried in a process of its own: drivers write what they
 * like to the error output, and one that crashes must not take the asking process with it.
 * Invariant: what is listed made a session; what fails, crashes or does not answer is left out.
 */
import { spawn } from 'node:child_process';
import { extname } from 'node:path';
import { fileURLToPath } from 'node:url';
import { PROVIDERS, type Provider } from './session-options.ts';

/** To start, load the drivers and make a session; first use of a graphics driver may compile for seconds. */
const TRIAL_TIMEOUT_MS = 30_000;

export async function usableProviders(): Promise<Provider[]> {
  const isUsable = await Promise.all(PROVIDERS.map(tryInAProcess));
  return PROVIDERS.filter((_, i) => isUsable[i]);
}

function tryInAProcess(provider: Provider): Promise<boolean> {
  const program = new URL(`./provider-trial${extname(import.meta.url)}`, import.meta.url);
  return new Promise((resolve) => {
    const child = spawn(process.execPath, [...process.execArgv, fileURLToPath(program), provider], {
      stdio: 'ignore',
      timeout: TRIAL_TIMEOUT_MS,
      killSignal: 'SIGKILL',
    });
    child.once('error', () => resolve(false));
    child.once('exit', (code) => resolve(code === 0));
  });
}
