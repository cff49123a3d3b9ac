/** `tributary export`: the trained model as an ONNX file that has been read back and compared. */
import { resolve } from 'node:path';
import { OnnxCompute } from '../../compute/index.ts';
import { printShape, type Tensor } from '../../graph/index.ts';
import { checkExport } from '../check-export.ts';
import { defineCommand, type OptionSpecs, type OptionValues } from '../command.ts';
import { bytesText, table } from '../format.ts';
import { ExitCode } from '../io.ts';
import { writeOutputFile } from '../output-file.ts';
import { modelTrustOptions, trustOf } from '../run-trust.ts';
import { exportTrained, openTrainedModel } from '../trained-model.ts';

const options = {
  output: { kind: 'text', value: 'FILE', help: 'Where to write. Default model.onnx in the run folder.' },
  ...modelTrustOptions,
} as const satisfies OptionSpecs;

export const exportCommand = defineCommand({
  name: 'export',
  summary: 'Write a trained model as an ONNX file.',
  operands: '<run folder>',
  operandCount: [1, 1],
  options,
  examples: ['tributary export runs/mnist --output digits.onnx'],
  run: async ([path], given: OptionValues<typeof options> & { readonly json?: boolean }, io) => {
    const trained = await openTrainedModel(resolve(io.cwd, path!), { maxBatch: 1, ...trustOf(given, io) });
    const compute = new OnnxCompute();
    try {
      for (const { path: bad, reason } of trained.skipped)
        io.stderr.write(`Skipped the checkpoint ${bad}: ${reason}\n`);
      const { built, replica, average, labels, facts } = trained;
      const bytes = exportTrained(built, replica, { average, labels });
      const valueOf = (source: Tensor) => replica.memory.source(source, average).view as Float32Array;
      const checked = checkExport(bytes, built.exports, { compute, valueOf, tokens: facts.vocabulary ?? 1 });
      const file = given.output === undefined ? trained.folder.modelFile : resolve(io.cwd, given.output);
      if (given.output === undefined) trained.folder.writeModel(bytes);
      else writeOutputFile(file, bytes, '--output');
      const ports = (tensors: Readonly<Record<string, Tensor>>) =>
        Object.entries(tensors).map(([name, { shape, dtype }]) => ({
          name,
          dtype,
          shape: printShape(shape),
        }));
      const [inputs, outputs] = [ports(checked.inputs), ports(checked.outputs)];
      if (given.json) {
        io.stdout.write(
          `${JSON.stringify({ file, bytes: bytes.length, step: replica.step, inputs, outputs, difference: checked.difference })}\n`,
        );
        return ExitCode.ok;
      }
      io.stdout.write(`${file}, ${bytesText(bytes.length)}, after ${replica.step} steps\n`);
      const rows = [
        ...inputs.map((port) => ['input', port] as const),
        ...outputs.map((port) => ['output', port] as const),
      ];
      io.stdout.write(
        `${table(rows.map(([kind, { name, dtype, shape }]) => [`${kind.padEnd(6)}  ${name}`, dtype, shape]))}\n`,
      );
      io.stdout.write(
        `Read back and compared on a random batch: largest difference ${checked.difference.toExponential(1)}.\n`,
      );
      return ExitCode.ok;
    } finally {
      compute.close();
      trained.close();
    }
  },
});
