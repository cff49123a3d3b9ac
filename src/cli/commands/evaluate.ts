/** `tributary evaluate`: how well the model of a run does on its test data or on other data. */
import { resolve } from 'node:path';
import { UsageError } from '../../base/index.ts';
import type { Dataset } from '../../data/index.ts';
import { loadMnist } from '../../data/index.ts';
import { evaluate } from '../../runtime/index.ts';
import { confusionOf, printReport, reportOf } from '../classification-report.ts';
import { evaluateAmongAllWords } from '../all-words-loss.ts';
import { defineCommand, type OptionSpecs, type OptionValues } from '../command.ts';
import { lossText, percent, thousands } from '../format.ts';
import { bold, ExitCode, type CommandIo } from '../io.ts';
import { modelTrustOptions, trustOf } from '../run-trust.ts';
import { encodeCsvFile, encodeTextFile } from '../task.ts';
import { openTrainedModel, type TrainedModel } from '../trained-model.ts';

const options = {
  data: {
    kind: 'text',
    value: 'PATH',
    help: 'Evaluate on this instead of the test data of the run: a CSV or text file, a folder for mnist.',
  },
  ...modelTrustOptions,
} as const satisfies OptionSpecs;

export const evaluateCommand = defineCommand({
  name: 'evaluate',
  summary: 'Loss and accuracy of a trained model, label by label.',
  operands: '<run folder>',
  operandCount: [1, 1],
  options,
  examples: [
    'tributary evaluate runs/mnist',
    'tributary evaluate runs/trec6 --data more-questions.csv --json',
  ],
  run: async ([path], given: OptionValues<typeof options> & { readonly json?: boolean }, io) => {
    const trained = await openTrainedModel(resolve(io.cwd, path!), trustOf(given, io));
    try {
      for (const { path: bad, reason } of trained.skipped)
        io.stderr.write(`Skipped the checkpoint ${bad}: ${reason}\n`);
      const dataset = trained.built.adapt(
        chooseData(trained, given.data === undefined ? undefined : resolve(io.cwd, given.data)),
      );
      show(trained, dataset, given.json ?? false, io);
      return ExitCode.ok;
    } finally {
      trained.close();
    }
  },
});

function chooseData(trained: TrainedModel, path: string | undefined): Dataset {
  const { data } = trained.config;
  const { vocabulary, labelSet } = trained.words;
  if (path === undefined) {
    const { test } = trained.loadTask();
    if (test) return test;
    throw new UsageError(
      'INVALID_COMMAND',
      `The run ${trained.folder.path} has no test data. Give some by --data.`,
    );
  }
  if (data.kind === 'mnist') return loadMnist(path).test;
  if (data.kind === 'text-csv')
    return encodeCsvFile(path, data, { vocabulary: vocabulary!, labelSet: labelSet! });
  if (data.kind === 'text') return encodeTextFile(path, data, vocabulary!);
  throw new UsageError(
    'INVALID_COMMAND',
    'tributary evaluate takes no --data for IDX files. Evaluate on the test data of the run.',
  );
}

function show(trained: TrainedModel, dataset: Dataset, json: boolean, io: CommandIo): void {
  const { replica, average, facts } = trained;
  if (trained.kind === 'language-model' || !('logits' in replica.model.outputs)) {
    const { loss, accuracy } = trained.built.hasSampledLoss
      ? evaluateAmongAllWords(replica, dataset, average)
      : evaluate(replica, dataset, average === undefined ? {} : { average });
    const result = {
      loss,
      perplexity: Math.exp(loss),
      accuracy,
      samples: dataset.length,
      step: replica.step,
    };
    if (json) io.stdout.write(`${JSON.stringify(result)}\n`);
    else {
      const right = accuracy === undefined ? '' : `, ${percent(accuracy)} of the next tokens right`;
      io.stdout.write(
        `loss ${lossText(loss)}, perplexity ${lossText(Math.exp(loss))}${right} (${thousands(dataset.length)} samples)\n`,
      );
    }
    return;
  }
  const report = reportOf(confusionOf(replica, dataset, facts.classes!, average), trained.labels);
  if (json) {
    io.stdout.write(`${JSON.stringify({ ...report, step: replica.step })}\n`);
    return;
  }
  const { loss, accuracy, samples } = report;
  io.stdout.write(`${printReport(report)}\n\n`);
  io.stdout.write(
    `accuracy ${bold(io, percent(accuracy))}, loss ${lossText(loss)} (${thousands(samples)} samples)\n`,
  );
}
