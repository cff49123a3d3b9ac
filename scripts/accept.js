// `npm run accept -- trust [clone simulation faults kills frames neighbour]`: whether nothing that was
// acknowledged is lost, and no tenant can hurt another. `npm run accept -- system [modes mnist tables
// program reader simulation exchange]`: whether every mode trains, and how fast. Both in the long forms
// that no change can wait for. Prints a line for each: what was seen, the bound, pass or fail. Without
// names all of a topic run, for two hours or so; the exit code is 1 if one fails. Give it a quiet machine.
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

/** Each as a user would type it behind `tributary train mnist`. */
const MODES = [
  ...['dist-sgd --servers 1', 'dist-asgd --servers 1', 'dist-esgd --servers 1'],
  ...['mpi-sgd --clients 2 --servers 1', 'mpi-asgd --clients 2 --servers 1'],
  ...['mpi-esgd --clients 2 --servers 1', 'collective'],
];
const LEAST_ACCURACY = 98.5;

const SYSTEM = {
  modes: {
    title: 'five models in all modes, over shared memory and TCP',
    bound: '0 failed',
    measure: () => vitest({ TRIBUTARY_ACCEPTANCE: '1' }, 'test/runner/modes', 'test/runner/fit-learners'),
  },
  mnist: {
    title: 'MNIST in all modes, four workers',
    bound: `${LEAST_ACCURACY} % each`,
    measure: inTemporaryFolder(async (folder) => {
      const reached = [];
      for (const mode of MODES) {
        const output = join(folder, mode.split(' ')[0]);
        const args = ['train', 'mnist', '--workers', '4', '--mode', ...mode.split(' '), '--output', output];
        const { output: text } = await run('node', ['bin/tributary.js', ...args]);
        // eslint-disable-next-line no-control-regex -- what a terminal would show in bold
        const plain = text.replace(/\u001b\[\d+m/g, '');
        const last = [...plain.matchAll(/accuracy ([\d.]+) %/g)].at(-1)?.[1];
        reached.push({ mode, accuracy: Number(last ?? 0) });
      }
      const seen = reached.map(({ mode, accuracy }) => `${mode} ${accuracy} %`).join(', ');
      return { seen, isGood: reached.every(({ accuracy }) => accuracy >= LEAST_ACCURACY) };
    }),
  },
  tables: {
    title: 'a table of 1,000,000 x 512 that only servers have: training, evaluation, checkpoint, resume',
    bound: '600 MB of its own for each worker',
    measure: () => vitest({ TRIBUTARY_LARGE_TABLES: '1' }, 'test/runner/large-table'),
  },
  program: {
    title: 'what a step did is what its program says, in traces and by tributary plan',
    bound: '0 failed',
    measure: () => vitest({}, 'test/plan/step-program', 'test/runner/step-trace', 'test/cli/plan'),
  },
  reader: {
    title: 'one function reads who trains',
    bound: '0 failed',
    measure: () => vitest({}, 'test/runner/on.test'),
  },
  simulation: {
    title: 'simulation of 2000 seeds, a third with clients; racks are not in it',
    bound: '0 with a finding',
    measure: async () => {
      const { code, output } = await npmRun('sim', '--seeds', '2000', '--all');
      return { seen: lastLine(output), isGood: code === 0 };
    },
  },
  exchange: {
    title: 'ResNet-18 by a client and a server on its host, of direct workers and of Open MPI',
    bound: 'at least 0.85 and 1.7',
    measure: async () => {
      const [direct, client] = [await exchange(), await exchange('--clients', '1')];
      const ofDirect = client.exchangesPerSec / direct.exchangesPerSec;
      const ofMpi = client.ratioOpenmpi;
      return {
        seen: `${ofDirect.toFixed(2)} and ${ofMpi.toFixed(2)}`,
        isGood: ofDirect >= 0.85 && ofMpi >= 1.7,
      };
    },
  },
};

const TOPICS = { trust: TRUST, system: SYSTEM };
const [topic, ...names] = process.argv.slice(2);
const items = TOPICS[topic] ?? {};
const wanted = names.length > 0 ? names : Object.keys(items);
const unknown = wanted.filter((name) => !(name in items));
if (!(topic in TOPICS) || unknown.length > 0) {
  for (const [known, all] of Object.entries(TOPICS)) {
    console.error(`usage: npm run accept -- ${known} [${Object.keys(all).join(' ')}]`);
  }
  process.exit(2);
}
for (const name of wanted) {
  const { title, bound, measure } = items[name];
  const { seen, isGood } = await measure();
  console.log(`${isGood ? 'pass' : 'FAIL'}  ${title}: ${seen} (bound: ${bound})`);
  if (!isGood) process.exitCode = 1;
}

/** The one case of a run. */
async function exchange(...args) {
  const asked = ['--model', 'resnet18', '--workers', '2', '--peers', 'openmpi', '--json'];
  const { output } = await run('node', ['bin/tributary.js', 'bench', 'exchange', ...asked, ...args]);
  return JSON.parse(output.slice(output.indexOf('{'))).cases[0];
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
