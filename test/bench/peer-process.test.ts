import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, describe, expect, it } from 'vitest';
import { Random } from '../../src/base/index.ts';
import {
  openBlasCoreType,
  PeerProcess,
  tfjsPeerCommand,
  torchPeerCommand,
  writePeerTensors,
  type PeerCommand,
  type PeerTensor,
} from '../../src/bench/index.ts';
import { component } from '../support/components.ts';

const open: PeerProcess[] = [];
const folders: string[] = [];
afterEach(async () => {
  await Promise.all(open.splice(0).map((peer) => peer.close(0)));
  await Promise.all(folders.splice(0).map((folder) => rm(folder, { recursive: true })));
});

/** A peer of a few lines: `answers[i]` is what it writes to request i; it ends when there are no more. */
function scripted(answers: readonly string[], last = 'process.exit(3)'): PeerCommand {
  const program = `const answers = ${JSON.stringify(answers)};
    require('node:readline').createInterface({ input: process.stdin }).on('line', () => {
      const next = answers.shift();
      if (next === undefined) { process.stderr.write('out of answers'); ${last}; } else console.log(next);
    });`;
  return {
    name: 'script',
    file: process.execPath,
    args: ['-e', program],
    env: {},
    install: 'install the script',
  };
}
const hello = '{"ok":true,"peer":"script","version":"1","threads":1,"models":[]}';

async function start(
  command: PeerCommand,
  options?: Parameters<typeof PeerProcess.start>[1],
): Promise<PeerProcess> {
  const peer = await PeerProcess.start(command, options);
  open.push(peer);
  return peer;
}

describe('conversation with a peer', () => {
  it('answers requests in order', async () => {
    const peer = await start(scripted([hello, '{"ok":true,"loss":2}', '{"ok":true,"seconds":0.5,"loss":1}']));
    expect(peer.info.version).toBe('1');
    expect(await peer.step()).toBe(2);
    expect(await peer.time(4)).toEqual({ seconds: 0.5, loss: 1 });
  });

  it('fails with what the peer wrote when it ends early, and keeps failing', async () => {
    const peer = await start(scripted([hello]));
    await expect(peer.step()).rejects.toMatchObject({
      code: 'PEER_EXITED',
      message: /exit code 3.*out of answers/s,
    });
    await expect(peer.step()).rejects.toMatchObject({ code: 'PEER_EXITED' });
  });

  it('kills a peer that misses its deadline', async () => {
    const peer = await start(scripted([hello], ''), { answerTimeoutMs: 20 });
    await expect(peer.step()).rejects.toMatchObject({ code: 'TIMEOUT' });
    await peer.close();
  });

  it('kills the peer when the signal is aborted', async () => {
    const controller = new AbortController();
    const peer = await start(scripted([hello], ''), { signal: controller.signal });
    const step = peer.step();
    controller.abort();
    await expect(step).rejects.toMatchObject({ code: 'PEER_EXITED', message: /signal/ });
    await peer.close();
  });

  it('distrusts an answer of another form', async () => {
    const peer = await start(scripted([hello, '{"ok":true,"loss":"low"}']));
    await expect(peer.step()).rejects.toMatchObject({ code: 'PEER_EXITED', message: /low/ });
  });

  it('passes on the reason of a refusal and goes on', async () => {
    const peer = await start(
      scripted([hello, '{"ok":false,"error":"no such model"}', '{"ok":true,"loss":1}']),
    );
    await expect(peer.step()).rejects.toMatchObject({ code: 'INVALID_ARGUMENT', message: /no such model/ });
    expect(await peer.step()).toBe(1);
  });

  it('names what to install when a library, BLAS or the program is missing', async () => {
    const missing = { code: 'MISSING_COMPONENT', message: /install the script$/ };
    const refusal = '{"ok":false,"missing":"torch","error":"no module"}';
    await expect(start(scripted([refusal]))).rejects.toMatchObject(missing);
    await expect(
      start(scripted([hello.replace('"models"', '"blasCore":"no OpenBLAS","models"')])),
    ).rejects.toMatchObject(missing);
    await expect(start({ ...scripted([]), file: '/nonexistent/python3' })).rejects.toMatchObject(missing);
  });
});

describe('settings of the peers', () => {
  it('tell OpenBLAS the widest vectors the processor has', () => {
    expect(openBlasCoreType(new Set(['avx2', 'avx512f']))).toBe('SkylakeX');
    expect(openBlasCoreType(new Set(['avx2']))).toBe('Haswell');
    expect(openBlasCoreType(new Set())).toBeUndefined();
  });

  it('name the Debian packages of PyTorch where its Python has none', async () => {
    const command = torchPeerCommand({ env: {}, pythonPath: '/nonexistent/python3' });
    await expect(start(command)).rejects.toThrow(/apt-get install python3-torch libopenblas0-pthread$/);
  });

  it('keep tunables of the caller', () => {
    const { env } = torchPeerCommand({ env: { GLIBC_TUNABLES: 'glibc.rtld.nns=4' } });
    expect(env['GLIBC_TUNABLES']).toBe('glibc.rtld.nns=4:glibc.malloc.hugetlb=1');
  });

  it('name the packages of TensorFlow.js where the folder has none', async () => {
    const folder = await mkdtemp(join(tmpdir(), 'no-tfjs-'));
    folders.push(folder);
    await expect(start(tfjsPeerCommand({ env: {}, packageFolder: folder }))).rejects.toThrow(
      /tfjs-backend-wasm/,
    );
  });
});

const torch = component('python3-torch');

describe.skipIf(!torch.present)(`PyTorch (${torch.needs})`, () => {
  it('computes the same losses in every variant of every model', { timeout: 120_000 }, async () => {
    const peer = await start(torchPeerCommand({ env: {} }));
    expect(peer.info).toMatchObject({ peer: 'torch', threads: 1 });
    for (const model of peer.info.models) {
      let expected: number[] | undefined;
      for (const variant of await peer.variants(model)) {
        await peer.load({ model, batch: 2, variant, seed: 7 });
        const losses = [await peer.step(), await peer.step()];
        expected ??= losses;
        losses.forEach((loss, i) => expect(loss, `${model} ${variant}`).toBeCloseTo(expected![i]!, 3));
      }
    }
  });

  it('starts from the given tensors and updates with rate 0.01', { timeout: 60_000 }, async () => {
    const folder = await mkdtemp(join(tmpdir(), 'torch-peer-'));
    folders.push(folder);
    const peer = await start(torchPeerCommand({ env: {} }));
    const { params, inputs } = await peer.load({ model: 'mlp', batch: 4 });
    const random = new Random(3);
    const count = (shape: readonly number[]) => shape.reduce((a, b) => a * b, 1);
    const tensors: PeerTensor[] = [
      // All weights 0: the loss is ln 10 and only the last bias has a gradient, softmax - share of each label.
      ...params.map(({ name, shape }) => ({ name, shape, data: new Float32Array(count(shape)) })),
      { ...inputs[0]!, data: Float32Array.from({ length: count(inputs[0]!.shape) }, () => random.normal()) },
      { name: 'y', shape: [4], data: Int32Array.of(1, 1, 1, 1) },
    ];
    await peer.load({ model: 'mlp', batch: 4, tensors: await writePeerTensors(folder, 'zero', tensors) });
    expect(await peer.step()).toBeCloseTo(Math.log(10), 5);
    const gap = 0.01 * (0.1 + 0.9);
    expect(await peer.step()).toBeCloseTo(Math.log(9 * Math.exp(-gap) + 1), 5);
    expect((await peer.time(2)).seconds).toBeGreaterThan(0);
  });

  it(
    'refuses tensors of another shape and unknown models, variants and labels',
    { timeout: 60_000 },
    async () => {
      const folder = await mkdtemp(join(tmpdir(), 'torch-peer-'));
      folders.push(folder);
      const peer = await start(torchPeerCommand({ env: {} }));
      const given = (tensor: PeerTensor) => writePeerTensors(folder, tensor.name, [tensor]);
      const bias = await given({ name: 'fc1.bias', shape: [3], data: new Float32Array(3) });
      await expect(peer.load({ model: 'mlp', batch: 2, tensors: bias })).rejects.toThrow(
        /fc1\.bias has shape \[3\]/,
      );
      const y = await given({ name: 'y', shape: [2], data: Int32Array.of(0, 10) });
      await expect(peer.load({ model: 'mlp', batch: 2, tensors: y })).rejects.toThrow(/expected 0 to 9/);
      await expect(peer.load({ model: 'gpt', batch: 2 })).rejects.toThrow(/gpt/);
      await expect(peer.load({ model: 'mlp', batch: 2, variant: 'magic' })).rejects.toThrow(/magic/);
      await expect(peer.step()).rejects.toThrow(/no model is loaded/);
    },
  );
});
