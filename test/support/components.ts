/**
 * Optional components of the machine that some tests need. A test that needs one is skipped where it is absent, under
 * a name that says what would enable it. With TRIBUTARY_REQUIRE_COMPONENTS=1, as continuous integration runs, an
 * absent component is a failed test instead: nothing is left out unnoticed.
 */
import { spawnSync } from 'node:child_process';
import { it } from 'vitest';

/** The Python that Debian's packages belong to; another one on the PATH does not see them. */
export const PYTHON = '/usr/bin/python3';

/** A program for each component, named by its Debian package; it ends with 0 where the component is there. */
const probes = {
  'python3-onnx': [PYTHON, '-c', 'import onnx, numpy'],
  // Only looked for: to import it takes seconds.
  'python3-torch': [
    PYTHON,
    '-c',
    'import importlib.util as u, sys; sys.exit(not u.find_spec("torch") and "No module named torch")',
  ],
  'python3-mpi4py': [PYTHON, '-c', 'import mpi4py'],
  // The program that starts ranks, and the library that they load; ldconfig lists what the loader finds.
  'openmpi-bin': ['/bin/sh', '-c', 'mpirun --version >&2 && /sbin/ldconfig -p | grep -q libmpi.so.40'],
  'libopenmpi-dev': ['mpicc', '--version'],
  // Network namespaces and limited links, which also need root and the kernel's consent.
  iproute2: [
    '/bin/sh',
    '-c',
    'n=tributary-$$-0-probe; ip netns add $n && tc -n $n qdisc add dev lo root tbf rate 1gbit burst 100kb latency 9ms; r=$?; ip netns delete $n; exit $r',
  ],
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
  const [file, ...args] = probes[name];
  const { status, stderr, error } = spawnSync(file, args, {
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
