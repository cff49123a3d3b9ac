export { mlp, type MlpOptions } from './mlp.ts';
export { lenet, type LenetOptions } from './lenet.ts';
export { resnet, type ResnetOptions } from './resnet.ts';
export { textCnn, type TextCnnOptions } from './text-cnn.ts';
export { lstmLanguageModel, type LstmLanguageModelOptions } from './lstm-language-model.ts';
export { sampledLanguageModel, type SampledLanguageModelOptions } from './sampled-language-model.ts';
export { transformerClassifier, type TransformerClassifierOptions } from './transformer-classifier.ts';
export { gpt, type GptOptions } from './gpt.ts';
export { findModel, models, type ModelEntry, type ModelName, type ModelOptions } from './registry.ts';
export { readOptions } from './options.ts';
export {
  recipes,
  recipeSchedule,
  textRecipe,
  type ImageRecipe,
  type RecipeName,
  type TextRecipe,
  type TrainingSettings,
} from './recipes.ts';
