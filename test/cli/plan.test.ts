/** `tributary plan` with real workers: the plan as data, as a table, and as a picture. */
import { spawnSync } from 'node:child_process';
import { mkdtempSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { afterAll, describe, expect, it } from 'vitest';
import type { ExchangePlan, StepProgram } from '../../src/plan/index.ts';
import { planPicture } from '../../src/cli/plan-picture.ts';
import { programOf } from '../support/test-program.ts';
import { withoutWaits } from '../support/worker-output.ts';

const MAIN = fileURLToPath(new URL('../../src/cli/main.ts', import.meta.url));
const folder = mkdtempSync(join(tmpdir(), 'plan-'));
afterAll(() => rmSync(folder, { recursive: true }));

function run(...args: string[]): { status: number | null; stdout: string; stderr: string } {
  const { status, stdout, stderr } = spawnSync(process.execPath, [...programOf(MAIN), 'plan', ...args], {
    cwd: folder,
    encoding: 'utf8',
    timeout: 100_000,
  });
  return { status, stdout, stderr };
}

describe('tributary plan', () => {
  it('gives every parameter a route, a group and a reason, and draws the lanes', () => {
    const { status, stdout, stderr } = run(
      ...['mnist', '--workers', '2', '--steps', '3', '--merging', 'layer by layer', '--json'],
      ...['--picture', 'plan.svg'],
    );
    expect({ status, stderr: withoutWaits(stderr) }).toEqual({ status: 0, stderr: '' });
    const plan = JSON.parse(stdout) as ExchangePlan & { measuredMs: number; program: StepProgram };
    expect(plan.parameters.length).toBeGreaterThan(2);
    expect(plan.groups).toHaveLength(plan.parameters.length);
    for (const { route, reason, group } of plan.parameters) {
      expect(route).toBe('collective');
      expect(reason).toMatch(/dense by collective/);
      expect(plan.groups[group]).toBeDefined();
    }
    expect(plan.measuredMs).toBeGreaterThan(0);
    const kinds = plan.program.operations.map(({ kind }) => kind);
    expect(kinds.filter((kind) => kind === 'reduce')).toHaveLength(plan.groups.length);
    expect([kinds[0], kinds.at(-1)]).toEqual(['load', 'evaluate']);
    const picture = readFileSync(join(folder, 'plan.svg'), 'utf8');
    expect(picture).toMatch(/^<svg.*<\/svg>\s*$/s);
    expect(picture.match(/<rect/g)!.length).toBeGreaterThan(2 * plan.groups.length);
  }, 110_000);

  it('prints a table, what every strategy is predicted to take, and what was measured', () => {
    const { status, stdout } = run('mnist', '--workers', '2', '--steps', '3');
    expect(status).toBe(0);
    expect(stdout).toMatch(/parameter +shape +touched +route +group +bytes/);
    expect(stdout).toMatch(
      /Candidates, merged optimally: hybrid [\d.]+ ms, collectives [\d.]+ ms, each alone [\d.]+ ms\./,
    );
    expect(stdout).toMatch(/collectives, layer by layer +\d+ +[\d.]+/);
    expect(stdout).toMatch(/Predicted [\d.]+ ms, measured [\d.]+ ms\./);
    expect(stdout).toMatch(/operation +lane +waits for +every +predicted ms\n *1 load batch +compute/);
    expect(stdout).toMatch(/allreduce [^ ]+ +communication +\d+ +/);
  }, 110_000);

  it('says that one worker exchanges nothing, as data too', () => {
    expect(run('mnist', '--workers', '1', '--steps', '1').stdout).toMatch(/^One worker exchanges nothing/);
    const { workers, note } = JSON.parse(
      run('mnist', '--workers', '1', '--steps', '1', '--json').stdout,
    ) as Record<string, unknown>;
    expect([workers, note]).toEqual([1, expect.stringMatching(/^One worker exchanges nothing/)]);
  }, 60_000);
});

it('a picture of nothing to send has one lane', () => {
  const plan = {
    ...{ iterationMs: 4, groups: [], strategy: 'hybrid', merging: 'optimal' },
    timeline: [{ lane: 'compute', name: 'forward <x>', startMs: 0, endMs: 4 }],
  } as unknown as ExchangePlan;
  expect(planPicture(plan, 'A & B')).toContain('forward &lt;x&gt;');
  expect(planPicture(plan, 'A & B')).not.toContain('servers');
});

it('a picture has a lane of servers if something goes there', () => {
  const bar = { lane: 'servers', name: 'push', startMs: 2, endMs: 4 } as const;
  const plan = {
    ...{ iterationMs: 4, groups: [], strategy: 'hybrid', merging: 'optimal', timeline: [bar] },
  } as unknown as ExchangePlan;
  expect(planPicture(plan, 'title')).toMatch(/>servers<.*<title>push</s);
});
