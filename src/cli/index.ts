/** What the package exports of the command line: how a configuration is written. The program itself starts at `main.ts`. */
export { defineConfig } from './config.ts';
export type {
  DataConfig,
  DataFacts,
  IdxData,
  MnistData,
  ModelConfig,
  ModelFunction,
  NamedModelConfig,
  OnnxModelConfig,
  ScheduleConfig,
  TextCsvData,
  TextData,
  TrainConfig,
} from './config.ts';
