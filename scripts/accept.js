// `npm run accept -- trust [clone simulation faults kills frames neighbour]`: whether nothing that was acknowledged is lost, and no
// tenant can hurt another, in the long forms that no change can wait for. Prints a line for each: what was seen, the bound, pass or fail.
// Without names all of them run, for two hours or so; the exit code is 1 if one fails. Give it a quiet machine.
import { spawn } from 'node:child_process';
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { performance } from 'node:perf_hooks';

const SEEDS = 20_000;
const CI_MINUTES = 20;

/** Each gives what was seen, and whether it is within the bound. */
const TRUST = {
  clone: {
    title: 'a clone in an empty folder: npm ci, npm test',
    bound: `0 failed, ${CI_MINUTES} minutes`,
    measure: inTemporaryFolder(async (folder) => {
      const begun = performance.now();
      await run('git', ['clone', '--quiet', process.cwd(), 'tributary'], { cwd: folder });
      const cwd = join(folder, 'tributary');
      const results = join(folder, 'results.json');
      const installed = await run('npm', ['ci', '--no-audit', '--no-fund'], { cwd });
      const tested = await run('npm', ['test', '--', `--results=${results}`], { cwd });
      const minutes = (performance.now() - begun) / 60_000;
      const totals = await run('node', ['scripts/test-totals.js', results], { cwd });
      const seen = `${totals.output.trim()} in ${minutes.toFixed(1)} minutes`;
      const isGood = installed.code === 0 && tested.code === 0 && totals.code === 0;
      return { seen, isGood: isGood && minutes < CI_MINUTES };
    }),
  },
  simulation: {
    title: `simulation of ${SEEDS} seeds`,
    bound: '0 with a finding',
    measure: async () => {
      const { code, output } = await npmRun('sim', '--seeds', String(SEEDS), '--all');
      return { seen: lastLine(output), isGood: code === 0 };
    },
  },
  faults: {
    title: 'old faults put back, found by the simulation',
    bound: 'all, each within 2000 seeds',
    measure: async () => {
      const { code, output } = await npmRun('test:mutants');
      return { seen: lastLine(output), isGood: code === 0 };
    },
  },
  kills: {
    title: 'kill -9 at 50 random moments in each test of kills',
    bound: '0 failed',
    measure: () =>
      vitest(
        { TRIBUTARY_KILLS: '50' },
        ...['test/server/durability/kills', 'test/kvstore/kills-synchronous'],
        ...['test/learners/kills-learners', 'test/system/kill'],
      ),
  },
  frames: {
    title: '100,000 mutated frames against server, scheduler and transport, and in sessions of tenants',
    bound: '0 failed',
    measure: () =>
      vitest(
        { TRIBUTARY_FUZZ_FRAMES: '100000' },
        ...[
          'test/server/hostile',
          'test/cluster/frames',
          'test/cluster/scheduler',
          'test/transport/tcp-fuzz',
        ],
      ),
  },
  neighbour: {
    title: 'exchanges beside a tenant that means badly, of those beside an idle one',
    bound: 'at least 70 %',
    measure: async () => {
      const { code, output } = await run('node', [
        'bin/tributary.js',
        'bench',
        'exchange',
        '--neighbour',
        '--json',
      ]);
      if (code !== 0) return { seen: lastLine(output), isGood: false };
      const { cases } = JSON.parse(output.slice(output.indexOf('{')));
      const ratio = Math.min(...cases.map(({ ratioAlone }) => ratioAlone));
      return { seen: `${Math.round(100 * ratio)} %`, isGood: ratio >= 0.7 };
    },
  },
};

const [topic, ...names] = process.argv.slice(2);
const wanted = names.length > 0 ? names : Object.keys(TRUST);
const unknown = wanted.filter((name) => !(name in TRUST));
if (topic !== 'trust' || unknown.length > 0) {
  console.error(`usage: npm run accept -- trust [${Object.keys(TRUST).join(' ')}]`);
  process.exit(2);
}
for (const name of wanted) {
  const { title, bound, measure } = TRUST[name];
  const { seen, isGood } = await measure();
  console.log(`${isGood ? 'pass' : 'FAIL'}  ${title}: ${seen} (bound: ${bound})`);
  if (!isGood) process.exitCode = 1;
}

function npmRun(script, ...args) {
  return run('npm', ['run', '--silent', script, '--', ...args]);
}

async function vitest(env, ...files) {
  const { code, output } = await run('npx', ['--no-install', 'vitest', 'run', ...files], { env });
  // eslint-disable-next-line no-control-regex -- what vitest colours its lines with
  const plain = output.replace(/\u001b\[\d+m/g, '');
  return { seen: /^ *Tests +(.*)$/m.exec(plain)?.[1] ?? lastLine(plain), isGood: code === 0 };
}

/** What it writes to its output is kept; its errors are shown. */
function run(program, args, { cwd, env } = {}) {
  return new Promise((resolve, reject) => {
    const child = spawn(program, args, {
      ...{ cwd, env: { ...process.env, ...env }, stdio: ['ignore', 'pipe', 'inherit'] },
    });
    let output = '';
    child.stdout.setEncoding('utf8').on('data', (text) => (output += text));
    child.on('error', reject);
    child.on('close', (code) => resolve({ code, output }));
  });
}

function inTemporaryFolder(act) {
  return async () => {
    const folder = mkdtempSync(join(tmpdir(), 'tributary-accept-'));
    try {
      return await act(folder);
    } finally {
      rmSync(folder, { recursive: true, force: true });
    }
  };
}

function lastLine(text) {
  return text.trim().split('\n').at(-1) ?? '';
}
