/**
 * Optional components of the machine that some tests need. A test that needs one is skipped where it is absent, under
 * a name that says what would enable it. With TRIBUTARY_REQUIRE_COMPONENTS=1, as continuous integration runs, an
 * absent component is a failed test instead: nothing is left out unnoticed.
 */
import { spawnSync } from 'node:child_process';
import { it } from 'vitest';

/** The Python that Debian's packages belong to; another one on the PATH does not see them. */
export const PYTHON = '/usr/bin/python3';

/** A Python program for each component, named by its Debian package; it ends with 0 where the component is there. */
const probes = {
  'python3-onnx': 'import onnx, numpy',
  // Only looked for: to import it takes seconds.
  'python3-torch':
    'import importlib.util as u, sys; sys.exit(not u.find_spec("torch") and "No module named torch")',
} as const;

export type ComponentName = keyof typeof probes;

export interface Component {
  readonly present: boolean;
  /** For the name of a test: what it needs. */
  readonly needs: string;
  /** Why it counts as absent; empty where it is present. */
  readonly reason: string;
}

/** Looks for a component. Call it while tests are collected: `describe.skipIf(!onnx.present)(`... (${onnx.needs})`)`. */
export function component(name: ComponentName): Component {
  const { status, stderr, error } = spawnSync(PYTHON, ['-c', probes[name]], {
    encoding: 'utf8',
    timeout: 60_000,
  });
  const present = status === 0;
  const needs = `needs Debian ${name}`;
  const reason = present ? '' : (error?.message ?? stderr.trim().split('\n').at(-1) ?? `exit code ${status}`);
  if (!present && process.env['TRIBUTARY_REQUIRE_COMPONENTS'] === '1') {
    it(`the component ${name} is installed`, () => {
      throw new Error(`${name} is absent (${reason}). Run: apt-get install ${name}`);
    });
  }
  return { present, needs, reason };
}
