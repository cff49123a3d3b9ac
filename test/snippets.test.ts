/**
 * Compiles every TypeScript snippet of the documents, and every example, against the types that are published: `dist`, as
 * the package 'tributary' of somebody else's project, resolved as Node does and as bundlers do. `npm run build` makes
 * `dist`. A snippet that is a fragment has a prelude below; any other must compile by itself.
 */
import {
  existsSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  rmSync,
  symlinkSync,
  writeFileSync,
} from 'node:fs';
import { tmpdir } from 'node:os';
import { basename, join } from 'node:path';
import ts from 'typescript';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { packageFolder } from './support/test-program.ts';

/** What a fragment takes from the text around it, by document and first line. */
const PRELUDES: Readonly<Record<string, Readonly<Record<string, string>>>> = {
  'README.md': {
    'const scheduler = await Scheduler.start({ size: 4, secret });': `
      import { Scheduler } from 'tributary';
      declare const secret: string;`,
    'const cluster = await joinCluster({ scheduler: address, secret });': `
      import { allReduce, joinCluster } from 'tributary';
      declare const address: string, secret: string;`,
    'const { tensors } = result.replica.snapshot();': `
      import { exportOnnx, type FitResult, type Model } from 'tributary';
      declare const model: Model, result: FitResult;`,
    "const { graph, outputs, notes } = importOnnx(readFileSync('model.onnx'), { source: 'model.onnx' });": `
      import { readFileSync } from 'node:fs';
      import { crossEntropy, importOnnx, N } from 'tributary';`,
  },
  'docs/planning.md': {
    'const plan = runner.plan!;': `
      import type { Runner } from 'tributary';
      declare const runner: Runner;`,
  },
  'docs/servers.md': {
    'for (const [key, weights] of parameters.entries()) {': `
      import type { KVStore } from 'tributary';
      declare const store: KVStore, parameters: Float32Array[], gradients: Float32Array[];
      declare function update(weights: Float32Array, gradient: Float32Array): void;`,
    "const store = await RemoteStore.connect({ ...options, combine: 'mean', held: true });": `
      import { RemoteStore, type KeyPull, type KeyPush, type RemoteStoreOptions } from 'tributary';
      declare const options: RemoteStoreOptions, gradients: KeyPush[], values: KeyPull[];
      declare const steps: number, samples: number, maxNorm: number;
      declare function schedule(step: number): number;`,
    'await store.init({': `
      import type { RemoteStore } from 'tributary';
      declare const store: RemoteStore, value: Float32Array;`,
    "const { steps, slots } = await store.pullState('w'); // by the optimizer's names: slots.exp_avg, slots.exp_avg_sq": `
      import type { RemoteStore } from 'tributary';
      declare const store: RemoteStore;`,
    "const store = await createStore('dist-esgd', { cluster, secret, alpha: 0.25 });": `
      import { createStore, elasticStep, type Cluster } from 'tributary';
      declare const cluster: Cluster, secret: string, weights: Float32Array, steps: number;
      declare function gradient(weights: Float32Array, step: number): Float32Array;
      declare function update(weights: Float32Array, gradient: Float32Array): void;`,
    "const store = await createStore('dist-sgd', {": `
      import { createStore, type Cluster } from 'tributary';
      declare const cluster: Cluster, secret: string, ownAddress: string;`,
  },
};

/** What users write beside snippets, and what once did not compile. */
const USES = `
  import { Graph, linear, N, relu, type DType, type Region, type RegionDType, type StoreTensor, Tensor } from 'tributary';
  export const layer = (x: Tensor) => relu(linear(x, 8));
  export const isTensor: boolean = layer(new Graph().input('x', [N, 4])) instanceof Tensor;
  export const types: DType[] = ['float32', 'int32', 'int64', 'bool'];
  export const bytes: RegionDType = 'uint8';
  export const stored = (region: Region<'float32'>): StoreTensor[] => [region, new Float32Array(1)];
  // @ts-expect-error A tensor of a store is no tensor of a graph.
  export const mixed = (values: StoreTensor): Tensor => values;
`;

const RESOLUTIONS = {
  nodenext: { module: ts.ModuleKind.NodeNext, moduleResolution: ts.ModuleResolutionKind.NodeNext },
  bundler: { module: ts.ModuleKind.ESNext, moduleResolution: ts.ModuleResolutionKind.Bundler },
} as const;

const read = (path: string) => readFileSync(join(packageFolder, path), 'utf8');
const isDocument = (name: string) => name.endsWith('.md');
const documents = [
  ...readdirSync(packageFolder).filter(isDocument),
  ...readdirSync(join(packageFolder, 'docs'), { recursive: true, encoding: 'utf8' })
    .filter(isDocument)
    .map((name) => `docs/${name}`),
];

/** The TypeScript of a document: its first lines and its texts. */
function snippetsOf(path: string): { readonly first: string; readonly text: string }[] {
  const blocks = read(path).matchAll(/^ *```(?:ts|typescript)\n([\s\S]*?)^ *```$/gm);
  return [...blocks].map(([, text]) => ({ first: text!.trim().split('\n')[0]!, text: text! }));
}

const sources = new Map<string, string>([['uses.ts', USES]]);
for (const path of documents) {
  snippetsOf(path).forEach(({ first, text }, i) => {
    const name = `${path.replaceAll('/', '-').replace(/\.md$/, '')}-${i + 1}.ts`;
    sources.set(name, `${PRELUDES[path]?.[first] ?? ''}\n${text}\nexport {};\n`);
  });
}
for (const name of readdirSync(join(packageFolder, 'examples'))) {
  if (name.endsWith('.ts')) sources.set(`examples-${basename(name)}`, read(`examples/${name}`));
}

const folder = mkdtempSync(join(tmpdir(), 'tributary-snippets-'));
afterAll(() => rmSync(folder, { recursive: true }));
beforeAll(() => {
  if (!existsSync(join(packageFolder, 'dist/index.d.ts'))) throw new Error('dist is absent: npm run build');
  mkdirSync(join(folder, 'node_modules'));
  symlinkSync(packageFolder, join(folder, 'node_modules/tributary'));
  symlinkSync(join(packageFolder, 'node_modules/@types'), join(folder, 'node_modules/@types'));
  writeFileSync(join(folder, 'package.json'), '{ "type": "module" }');
  for (const [name, text] of sources) writeFileSync(join(folder, name), text);
});

function compile(resolution: keyof typeof RESOLUTIONS): ts.Program {
  return ts.createProgram(
    [...sources.keys()].map((name) => join(folder, name)),
    {
      ...{ ...RESOLUTIONS[resolution], target: ts.ScriptTarget.ES2022, strict: true, noEmit: true },
      ...{ noUncheckedIndexedAccess: true, exactOptionalPropertyTypes: true, verbatimModuleSyntax: true },
      ...{ skipLibCheck: true, types: ['node'], typeRoots: [join(folder, 'node_modules/@types')] },
    },
  );
}

/** What the compiler finds fault with, by file. */
function faultsOf(program: ts.Program): Map<string, string[]> {
  const faults = new Map<string, string[]>();
  for (const { file, start = 0, messageText } of ts.getPreEmitDiagnostics(program)) {
    const name = file ? basename(file.fileName) : '';
    const line = file?.text.split('\n')[file.getLineAndCharacterOfPosition(start).line]?.trim() ?? '';
    const fault = `${ts.flattenDiagnosticMessageText(messageText, ' ')} (${line})`;
    faults.set(name, [...(faults.get(name) ?? []), fault]);
  }
  return faults;
}

/** In ms, for the compiler on a busy machine. */
const LONG = 240_000;

describe.each(Object.keys(RESOLUTIONS) as (keyof typeof RESOLUTIONS)[])(
  'TypeScript of the documents, resolved by %s',
  (resolution) => {
    let faults: ReadonlyMap<string, readonly string[]>;
    beforeAll(() => {
      faults = faultsOf(compile(resolution));
    }, LONG);

    it.each([...sources.keys()])('%s compiles', (name) => {
      expect(faults.get(name) ?? []).toEqual([]);
    });

    it('has no fault elsewhere', () => {
      expect([...faults.keys()].filter((name) => !sources.has(name))).toEqual([]);
    });
  },
);

it('every prelude has its snippet', () => {
  for (const [path, preludes] of Object.entries(PRELUDES)) {
    const firsts = snippetsOf(path).map(({ first }) => first);
    expect(Object.keys(preludes).filter((first) => !firsts.includes(first))).toEqual([]);
    expect(new Set(firsts).size, `first lines in ${path}`).toBe(firsts.length);
  }
});

it('the public interface gives each name one meaning', { timeout: LONG }, () => {
  const program = compile('nodenext');
  const checker = program.getTypeChecker();
  const index = program.getSourceFile(join(packageFolder, 'dist/index.d.ts'))!;
  const modules = new Map<string, string[]>();
  for (const statement of index.statements) {
    if (!ts.isExportDeclaration(statement) || !statement.moduleSpecifier) continue;
    const { exportClause, moduleSpecifier } = statement;
    const names =
      exportClause && ts.isNamedExports(exportClause)
        ? exportClause.elements.map(({ name }) => name.text)
        : checker.getExportsOfModule(checker.getSymbolAtLocation(moduleSpecifier)!).map(({ name }) => name);
    for (const name of names) modules.set(name, [...(modules.get(name) ?? []), moduleSpecifier.getText()]);
  }
  expect(modules.size).toBeGreaterThan(100);
  // A list hides what a star exports, and two stars hide each other: no compiler says so.
  expect([...modules].filter(([, all]) => all.length > 1)).toEqual([]);
});
