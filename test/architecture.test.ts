/** Holds the import table of `src`, the rules for its files, and that the table in docs/ARCHITECTURE.md is the same one. */
import { readdirSync, readFileSync } from 'node:fs';
import { fileURLToPath } from 'node:url';
import { describe, expect, it } from 'vitest';
import {
  findCycle,
  folderOf,
  forbiddenImports,
  importsOf,
  layers,
  MAX_LINES,
  styleFaults,
  tableBelow,
  type SourceText,
} from './support/architecture.ts';

const root = fileURLToPath(new URL('..', import.meta.url));
const files: SourceText[] = readdirSync(`${root}/src`, { recursive: true, encoding: 'utf8' })
  .map((name) => `src/${name.replaceAll('\\', '/')}`)
  .filter((path) => path.endsWith('.ts'))
  .sort()
  .map((path) => ({ path, text: readFileSync(`${root}/${path}`, 'utf8') }));

const source = (path: string, ...lines: string[]): SourceText => ({
  path,
  text: ['/** What it is. */', ...lines].join('\n'),
});

describe('the folders of src', () => {
  it('are those of the table, which lists each below all it may import', () => {
    const folders = new Set(files.map(({ path }) => folderOf(path)).filter((folder) => folder !== undefined));
    expect([...folders].sort()).toEqual(layers.map(({ folder }) => folder).sort());
    layers.forEach(({ folder, mayImport }, i) => {
      const above = layers.slice(0, i).map((row) => row.folder);
      expect(
        mayImport.filter((name) => !above.includes(name)),
        `src/${folder} may import`,
      ).toEqual([]);
    });
  });

  it('import only what their row allows, and only the index.ts of others', () => {
    expect(files.flatMap(forbiddenImports)).toEqual([]);
  });

  it('have no cycle of files', () => {
    expect(findCycle(files)).toBeUndefined();
  });

  it('import only files that exist', () => {
    const known = new Set(files.map(({ path }) => path));
    const missing = files.flatMap((file) =>
      importsOf(file)
        .filter(({ target, relative }) => relative && !known.has(target))
        .map(({ target }) => `${file.path} -> ${target}`),
    );
    expect(missing).toEqual([]);
  });

  it('are drawn in docs/ARCHITECTURE.md by the same table', () => {
    const names = (list: readonly string[]) => (list.length === 0 ? 'nothing' : list.join(', '));
    const expected = layers.map(({ folder, holds, mayImport, packages }) => [
      `\`src/${folder}/\``,
      holds,
      names(mayImport),
      packages.length === 0 ? '' : packages.join(', '),
    ]);
    const document = readFileSync(`${root}/docs/ARCHITECTURE.md`, 'utf8');
    expect(tableBelow(document, '## Layers')).toEqual(expected);
  });
});

describe('the files of src', () => {
  it('have a header, a telling name, a bearable length, and read no environment outside the command line', () => {
    expect(files.flatMap(styleFaults)).toEqual([]);
  });
});

describe('the checks', () => {
  it.each([
    ['a folder above', "import { fit } from '../runner/index.ts';"],
    ['a type of a folder above', "import type { FitOptions } from '../runner/index.ts';"],
    ['a re-export', "export * from '../compute/index.ts';"],
    ['a dynamic import', "const later = () => import('../cli/index.ts');"],
    ['a type in place', "type Late = import('../data/index.ts').Dataset;"],
    ['the inside of an allowed folder', "import { UsageError } from '../base/errors.ts';"],
    ['a package of another folder', "import koffi from 'koffi';"],
    ['a file that belongs to no folder', "import { fit } from '../index.ts';"],
    ['an import over several lines', 'import {\n  Region,\n  Segment,\n} from\n  "../memory/index.ts";'],
  ])('see a forbidden import: %s', (_what, line) => {
    expect(forbiddenImports(source('src/graph/invented.ts', line))).toHaveLength(1);
  });

  it('see a file in a folder without a row', () => {
    expect(forbiddenImports(source('src/invented/thing.ts'))).toEqual([
      expect.stringContaining('src/invented has no row'),
    ]);
  });

  it('see an import of the inside of a folder by the public API', () => {
    expect(forbiddenImports(source('src/index.ts', "export * from './graph/index.ts';"))).toEqual([]);
    expect(forbiddenImports(source('src/index.ts', "export * from './graph/graph.ts';"))).toHaveLength(1);
  });

  it('let pass what is allowed, and what only looks like an import', () => {
    const text = [
      "import { readFileSync } from 'node:fs';",
      "import { UsageError } from '../base/index.ts';",
      "import { Graph } from './graph.ts';",
      "// import { fit } from '../runner/index.ts';",
      "const example = `import { fit } from '../runner/index.ts'`;",
    ];
    expect(forbiddenImports(source('src/graph/invented.ts', ...text))).toEqual([]);
  });

  it('see a cycle at run time, but none where only types are imported', () => {
    const a = (line: string) => source('src/graph/a.ts', line);
    const b = source('src/graph/b.ts', "import { a } from './a.ts';");
    expect(findCycle([a("import { b } from './b.ts';"), b])).toEqual([
      'src/graph/a.ts',
      'src/graph/b.ts',
      'src/graph/a.ts',
    ]);
    expect(findCycle([a("export { b } from './b.ts';"), b])).toHaveLength(3);
    expect(findCycle([a("import type { B } from './b.ts';"), b])).toBeUndefined();
    // With verbatimModuleSyntax this one is still there at run time.
    expect(findCycle([a("import { type B } from './b.ts';"), b])).toHaveLength(3);
  });

  it.each([
    ['a missing header', { path: 'src/graph/bare.ts', text: 'export const a = 1;' }],
    ['too many lines', source('src/graph/long.ts', ...Array.from({ length: MAX_LINES }, () => ''), 'end();')],
    ['a vague name', source('src/graph/utils.ts')],
    ['a vague part of a name', source('src/graph/string-helpers.ts')],
    ['a vague folder', source('src/graph/common/shape.ts')],
    ['a name that is not kebab-case', source('src/graph/ModelProto.ts')],
    ['process.env', source('src/graph/a.ts', 'const debug = process.env.DEBUG;')],
    ["process['env']", source('src/graph/a.ts', "const debug = process['env'];")],
    ['env by destructuring', source('src/graph/a.ts', 'const { env } = process;')],
    ['env by import', source('src/graph/a.ts', "import { env } from 'node:process';")],
  ])('see %s', (_what, file) => {
    expect(styleFaults(file)).toHaveLength(1);
  });

  it('let the command line read the environment, and an index.ts without a header only list', () => {
    expect(styleFaults(source('src/cli/main.ts', 'const { env } = process;'))).toEqual([]);
    expect(styleFaults({ path: 'src/graph/index.ts', text: "export * from './a.ts';" })).toEqual([]);
    expect(styleFaults({ path: 'src/graph/index.ts', text: 'export const a = 1;' })).toHaveLength(1);
  });
});
