/**
 * The file in which the harness hands parameters and inputs to a peer: `<name>.json` names each tensor with its dtype,
 * shape and byte offset, `<name>.bin` beside it holds them little-endian and row-major. Not a model format: nothing is
 * kept between runs. Invariant: what `readPeerTensors` returns lies inside the data file, whatever the manifest says.
 */
import { readFile, writeFile } from 'node:fs/promises';
import { basename, dirname, join } from 'node:path';
import { z } from 'zod';
import { UsageError } from '../base/index.ts';

export interface PeerTensor {
  readonly name: string;
  readonly shape: readonly number[];
  readonly data: Float32Array | Int32Array;
}

const Manifest = z.object({
  data: z.string(),
  tensors: z.array(
    z.object({
      name: z.string(),
      dtype: z.enum(['float32', 'int32']),
      shape: z.array(z.number().int().nonnegative()),
      byteOffset: z.number().int().nonnegative().multipleOf(4),
    }),
  ),
});

const elements = (shape: readonly number[]): number => shape.reduce((product, size) => product * size, 1);

/** Writes `<stem>.json` and `<stem>.bin` into `folder`; returns the path of the manifest, which a load request names. */
export async function writePeerTensors(
  folder: string,
  stem: string,
  tensors: readonly PeerTensor[],
): Promise<string> {
  let byteOffset = 0;
  const entries = tensors.map(({ name, shape, data }) => {
    if (elements(shape) !== data.length)
      throw new UsageError(
        'SHAPE_MISMATCH',
        `Tensor ${name} of shape [${shape.join(', ')}] needs ${elements(shape)} elements but has ${data.length}; pass as many as the shape holds.`,
        { name, shape, actual: data.length },
      );
    const entry = { name, dtype: data instanceof Int32Array ? 'int32' : 'float32', shape, byteOffset };
    byteOffset += data.byteLength;
    return entry;
  });
  const bytes = Buffer.concat(
    tensors.map(({ data }) => new Uint8Array(data.buffer, data.byteOffset, data.byteLength)),
  );
  const manifest = join(folder, `${stem}.json`);
  await writeFile(join(folder, `${stem}.bin`), bytes);
  await writeFile(manifest, JSON.stringify({ data: `${stem}.bin`, tensors: entries }));
  return manifest;
}

/** Reads what `writePeerTensors` wrote, by name. */
export async function readPeerTensors(manifestPath: string): Promise<Map<string, PeerTensor>> {
  const text = await readFile(manifestPath, 'utf8').catch((cause: unknown) => {
    throw new UsageError(
      'FILE_NOT_FOUND',
      `${manifestPath} cannot be read; check the path given to load.`,
      { path: manifestPath },
      cause,
    );
  });
  let manifest: z.infer<typeof Manifest>;
  try {
    manifest = Manifest.parse(JSON.parse(text));
  } catch (cause) {
    throw new UsageError(
      'INVALID_DATA',
      `${manifestPath} is not a tensor manifest ({data, tensors: [{name, dtype, shape, byteOffset}]}); write it with writePeerTensors.`,
      { path: manifestPath },
      cause,
    );
  }
  const path = join(dirname(manifestPath), basename(manifest.data));
  const file = await readFile(path);
  const bytes = file.buffer.slice(file.byteOffset, file.byteOffset + file.byteLength);
  const tensors = new Map<string, PeerTensor>();
  for (const { name, dtype, shape, byteOffset } of manifest.tensors) {
    const length = elements(shape);
    const end = byteOffset + 4 * length;
    if (!(end <= bytes.byteLength))
      throw new UsageError(
        'INVALID_DATA',
        `Tensor ${name} needs bytes ${byteOffset} to ${end}, but ${path} has ${bytes.byteLength}; write both files again.`,
        { name, expected: end, actual: bytes.byteLength },
      );
    const data =
      dtype === 'int32'
        ? new Int32Array(bytes, byteOffset, length)
        : new Float32Array(bytes, byteOffset, length);
    tensors.set(name, { name, shape, data });
  }
  return tensors;
}
