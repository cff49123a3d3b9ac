/**
 * The import table of `src` and the checks that hold it: which folder may import which, and what every source file
 * must keep to. Pure functions of paths and texts, so that a test can show them a forbidden import that is nowhere
 * on the disk. Invariant: `docs/ARCHITECTURE.md` prints the same table (architecture.test.ts compares them).
 */
import { posix } from 'node:path';
import ts from 'typescript';

export interface Layer {
  readonly folder: string;
  readonly holds: string;
  /** Folders of `src`; each stands above this row, which is what makes cycles between folders impossible. */
  readonly mayImport: readonly string[];
  /** npm packages; those of Node itself are free. */
  readonly packages: readonly string[];
}

/** In the order in which data flows. A change here is a change of `docs/ARCHITECTURE.md` and of a decision there. */
export const layers: readonly Layer[] = [
  layer('base', 'errors, seeded random numbers, learning-rate schedules, starting threads', [], []),
  layer('memory', 'shared segments, regions, futex words', ['base'], ['koffi']),
  layer('kernels', 'AssemblyScript sources, their typed wrappers, update rules', ['memory', 'base'], []),
  layer(
    'sockets',
    'the system calls of sockets, TLS tunnels, proofs of a shared secret',
    ['memory', 'base'],
    ['koffi'],
  ),
  layer('engine', 'dependency engine: operations with read and mutate sets', ['base'], []),
  layer(
    'transport',
    'contract; `shared-memory/`, `tcp/`, `mpi/`, and the choice by host',
    ['sockets', 'memory', 'base'],
    ['koffi'],
  ),
  layer(
    'progress',
    'operations under way: driving them, deadlines, stalls, disagreements, losses',
    ['transport', 'memory', 'base'],
    [],
  ),
  layer(
    'cluster',
    'scheduler (rendezvous), membership, groups',
    ['progress', 'transport', 'sockets', 'kernels', 'memory', 'base'],
    [],
  ),
  layer(
    'collectives',
    'one collective a file, `algorithms/`, measured costs',
    ['cluster', 'progress', 'transport', 'kernels', 'memory', 'base'],
    [],
  ),
  layer(
    'launcher',
    'how processes start and get into a cluster: places of workers, transport and address',
    ['collectives', 'cluster', 'progress', 'transport', 'sockets', 'kernels', 'memory', 'base'],
    ['zod'],
  ),
  layer(
    'communication',
    'a thread that runs collectives while the caller computes',
    ['launcher', 'collectives', 'cluster', 'progress', 'transport', 'kernels', 'memory', 'base'],
    [],
  ),
  layer(
    'plan',
    'pure: routes, groups, chunks and where they go, bounds, the program of a step',
    ['base'],
    [],
  ),
  layer(
    'server',
    'parameter server: cores, aggregation, update rules, consistency, tenants, checkpoints',
    ['plan', 'sockets', 'kernels', 'memory', 'base'],
    [],
  ),
  layer(
    'kvstore',
    'push, pull, pushpull, rows for any framework: contract and stores',
    ['server', 'plan', 'collectives', 'cluster', 'engine', 'sockets', 'kernels', 'memory', 'base'],
    [],
  ),
  layer(
    'graph',
    'operation catalogue, builder, gradients, layers, ONNX in and out',
    ['base'],
    ['protobufjs'],
  ),
  layer(
    'compute',
    'contract; `onnxruntime/`, `null/` (zero compute)',
    ['graph', 'memory', 'base'],
    ['koffi'],
  ),
  layer('models', 'ready models with checked options', ['graph', 'base'], ['zod']),
  layer('data', 'datasets, text and image readers, loaders', ['base'], []),
  layer(
    'runtime',
    "one device's copy of a model: backward, update, evaluation, checkpoints; walks a step",
    ['data', 'compute', 'graph', 'plan', 'kernels', 'memory', 'base'],
    [],
  ),
  layer(
    'exchange',
    'gradients of all workers become one, by collectives and by servers',
    [
      'runtime',
      'graph',
      'kvstore',
      'server',
      'plan',
      'communication',
      'progress',
      'sockets',
      'kernels',
      'memory',
      'base',
    ],
    [],
  ),
  layer(
    'learners',
    'processes that train one model in shared memory: board, watchdog, update modes',
    ['runtime', 'data', 'compute', 'graph', 'launcher', 'kernels', 'memory', 'base'],
    [],
  ),
  layer(
    'runner',
    '`fit`; `shard`, `getRunner` and what they give; who trains',
    [
      ...['learners', 'exchange', 'runtime', 'data', 'compute', 'graph', 'kvstore', 'plan', 'communication'],
      ...['launcher', 'kernels', 'memory', 'base'],
    ],
    ['zod'],
  ),
  layer(
    'bench',
    'comparisons with other systems, `peers/`',
    [
      ...['learners', 'runner', 'kvstore', 'server', 'plan', 'launcher', 'collectives', 'cluster'],
      ...['runtime', 'data', 'models', 'compute', 'graph', 'kernels', 'memory', 'base'],
    ],
    ['koffi', 'zod'],
  ),
  layer(
    'cli',
    'thin commands, which read the environment',
    [
      ...['bench', 'learners', 'runner', 'runtime', 'data', 'models', 'compute', 'graph'],
      ...['plan', 'server', 'cluster', 'kernels', 'memory', 'base'],
    ],
    ['jiti', 'zod'],
  ),
];

/** The only folders that may read the environment; the launcher to find whether its process was started as a worker. */
export const environmentReaders: readonly string[] = ['cli', 'launcher'];

export const MAX_LINES = 600;
const VAGUE_NAMES = ['utils', 'util', 'helpers', 'helper', 'common', 'misc'];

function layer(folder: string, holds: string, mayImport: string[], packages: string[]): Layer {
  return { folder, holds, mayImport, packages };
}

export interface SourceText {
  /** From the root of the repository, with slashes: `src/graph/graph.ts`. */
  readonly path: string;
  readonly text: string;
}

export interface Import {
  /** A path from the root of the repository, or the name of a package. */
  readonly target: string;
  readonly relative: boolean;
  /** `import type` and `export type` leave nothing at run time; `import { type A }` leaves an import. */
  readonly erased: boolean;
}

/** Everything that a file imports, in any form that names a literal. */
export function importsOf(file: SourceText): Import[] {
  const { path } = file;
  const found: Import[] = [];
  const add = (specifier: ts.Node | undefined, erased: boolean) => {
    if (!specifier || !ts.isStringLiteralLike(specifier)) return;
    const relative = specifier.text.startsWith('.');
    if (!relative && specifier.text.startsWith('node:')) return;
    found.push({
      target: relative ? resolveFrom(path, specifier.text) : packageOf(specifier.text),
      relative,
      erased,
    });
  };
  const visit = (node: ts.Node): void => {
    if (ts.isImportDeclaration(node))
      add(node.moduleSpecifier, node.importClause?.phaseModifier === ts.SyntaxKind.TypeKeyword);
    else if (ts.isExportDeclaration(node)) add(node.moduleSpecifier, node.isTypeOnly);
    else if (ts.isImportTypeNode(node) && ts.isLiteralTypeNode(node.argument))
      add(node.argument.literal, true);
    else if (ts.isExternalModuleReference(node)) add(node.expression, false);
    else if (ts.isCallExpression(node) && node.expression.kind === ts.SyntaxKind.ImportKeyword)
      add(node.arguments[0], false);
    ts.forEachChild(node, visit);
  };
  visit(parse(file));
  return found;
}

const parsed = new WeakMap<SourceText, ts.SourceFile>();

function parse(file: SourceText): ts.SourceFile {
  const known = parsed.get(file) ?? ts.createSourceFile(file.path, file.text, ts.ScriptTarget.Latest, true);
  parsed.set(file, known);
  return known;
}

function resolveFrom(path: string, specifier: string): string {
  const target = posix.join(posix.dirname(path), specifier);
  // AssemblyScript names its modules without an ending.
  return /\.[cm]?[jt]s$|\.json$/.test(target) ? target : `${target}.ts`;
}

function packageOf(specifier: string): string {
  const parts = specifier.split('/');
  return specifier.startsWith('@') ? parts.slice(0, 2).join('/') : parts[0]!;
}

/** The folder of `src` that a path is in; undefined for files directly in `src` and for what is outside. */
export function folderOf(path: string): string | undefined {
  return /^src\/([^/]+)\//.exec(path)?.[1];
}

/** Imports against the table; one sentence for each that is forbidden. */
export function forbiddenImports(file: SourceText): string[] {
  const folder = folderOf(file.path);
  const row = layers.find((entry) => entry.folder === folder);
  // The public API, src/index.ts, shows parts of every folder; nobody imports it.
  if (folder === undefined) return importsOf(file).flatMap((entry) => passIndex(file, entry, undefined));
  if (!row) return [`${file.path}: the folder src/${folder} has no row in the table`];
  return importsOf(file).flatMap((entry): string[] => {
    if (!entry.relative) {
      if (row.packages.includes(entry.target)) return [];
      return [`${file.path} imports the package ${entry.target}, which src/${folder} may not`];
    }
    const other = folderOf(entry.target);
    if (other === folder) return [];
    if (other === undefined)
      return [`${file.path} imports ${entry.target}, which is outside every folder of src`];
    if (!row.mayImport.includes(other))
      return [`${file.path} imports ${entry.target}, but src/${folder} may not import src/${other}`];
    return passIndex(file, entry, folder);
  });
}

function passIndex(file: SourceText, { target, relative }: Import, folder: string | undefined): string[] {
  const other = folderOf(target);
  if (!relative || other === folder || target === `src/${other}/index.ts`) return [];
  return [`${file.path} imports ${target}; outside its folder only src/${other}/index.ts may be imported`];
}

/** One cycle of imports that are there at run time, as the files on it, or undefined. */
export function findCycle(files: readonly SourceText[]): string[] | undefined {
  const next = new Map(
    files.map((file) => [
      file.path,
      importsOf(file).flatMap(({ target, relative, erased }) => (relative && !erased ? [target] : [])),
    ]),
  );
  const done = new Set<string>();
  const walk = (path: string, way: readonly string[]): string[] | undefined => {
    if (way.includes(path)) return [...way.slice(way.indexOf(path)), path];
    if (done.has(path)) return undefined;
    for (const target of next.get(path) ?? []) {
      const cycle = walk(target, [...way, path]);
      if (cycle) return cycle;
    }
    done.add(path);
    return undefined;
  };
  for (const path of next.keys()) {
    const cycle = walk(path, []);
    if (cycle) return cycle;
  }
  return undefined;
}

/** What a single file must keep to: its header, its length, its name, and where the environment is read. */
export function styleFaults(file: SourceText): string[] {
  const { path, text } = file;
  const faults: string[] = [];
  const lines = text.trimEnd().split('\n').length;
  if (lines > MAX_LINES) faults.push(`${path} has ${lines} lines; split it before ${MAX_LINES}`);
  if (!/^\s*(\/\*|\/\/)/.test(text) && !onlyReExports(file))
    faults.push(`${path} has no header; open it with a comment that says what it is`);
  for (const part of path.replace(/\.[^/]*$/, '').split('/')) {
    if (VAGUE_NAMES.some((name) => part.split('-').includes(name)))
      faults.push(`${path} is named '${part}'; name it for the thing in it`);
    if (!/^[a-z0-9]+(-[a-z0-9]+)*$/.test(part)) faults.push(`${path}: '${part}' is not kebab-case`);
  }
  if (!environmentReaders.includes(folderOf(path) ?? '') && readsEnvironment(file))
    faults.push(`${path} reads process.env; take what is needed as an argument`);
  return faults;
}

/** An index that only lists what the folder gives out explains itself. */
function onlyReExports(file: SourceText): boolean {
  return (
    posix.basename(file.path) === 'index.ts' &&
    parse(file).statements.every(
      (statement) => ts.isExportDeclaration(statement) && statement.moduleSpecifier,
    )
  );
}

function readsEnvironment(file: SourceText): boolean {
  let found = false;
  const visit = (node: ts.Node): void => {
    if (ts.isPropertyAccessExpression(node)) {
      const owner = node.expression.getText();
      if (node.name.text === 'env' && /^(globalThis\.)?process$/.test(owner)) found = true;
    }
    // `process['env']`, `const { env } = process` and `import { env } from 'node:process'`.
    if (ts.isElementAccessExpression(node) && node.expression.getText() === 'process') found = true;
    if (ts.isVariableDeclaration(node) && node.initializer?.getText() === 'process') found = true;
    if (ts.isImportDeclaration(node) && /^['"](node:)?process['"]$/.test(node.moduleSpecifier.getText()))
      found = true;
    ts.forEachChild(node, visit);
  };
  visit(parse(file));
  return found;
}

/** The cells of the first table below a heading of a Markdown text, without its two head lines. */
export function tableBelow(markdown: string, heading: string): string[][] {
  const lines = markdown.split('\n');
  const start = lines.indexOf(heading);
  const first = lines.findIndex((line, i) => i > start && line.startsWith('|'));
  if (start < 0 || first < 0) return [];
  const rest = lines.slice(first);
  const end = rest.findIndex((line) => !line.startsWith('|'));
  return rest.slice(2, end < 0 ? undefined : end).map((line) =>
    line
      .slice(1, line.lastIndexOf('|'))
      .split('|')
      .map((cell) => cell.trim()),
  );
}
