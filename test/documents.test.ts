/** Holds that the documents speak of what is there: links lead somewhere, and the README shows the example that runs. */
import { existsSync, readdirSync, readFileSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { describe, expect, it } from 'vitest';

const root = fileURLToPath(new URL('..', import.meta.url));
const read = (path: string) => readFileSync(join(root, path), 'utf8');
const documents = [
  ...readdirSync(root),
  ...readdirSync(join(root, 'docs'), { recursive: true, encoding: 'utf8' }).map((name) => `docs/${name}`),
].filter((name) => name.endsWith('.md'));

/** Anchors as GitHub makes them of headings. */
const anchors = (path: string) =>
  [...read(path).matchAll(/^#+ (.*)$/gm)].map(([, heading]) =>
    heading!
      .toLowerCase()
      .replace(/[^\w\- ]/g, '')
      .replaceAll(' ', '-'),
  );

describe('documents', () => {
  it.each(documents)('%s links only to what exists', (path) => {
    for (const [, link] of read(path).matchAll(/\]\(([^)\s]+)\)/g)) {
      if (/^https?:/.test(link!)) continue;
      const [target, anchor] = link!.split('#') as [string, string?];
      const file = target === '' ? path : join(dirname(path), target);
      expect(existsSync(join(root, file)), link).toBe(true);
      if (anchor !== undefined) expect(anchors(file), link).toContain(anchor);
    }
  });

  it.each(documents)('%s has no placeholder', (path) => {
    expect(read(path).match(/^.*@@.*$/m)?.[0]).toBeUndefined();
  });

  it('name files of src that exist', () => {
    const named = [...read('docs/ARCHITECTURE.md').matchAll(/`([a-z]+\/[a-z/-]+(?:\.ts|\/))`/g)].map(
      ([, name]) => name!,
    );
    expect(named.length).toBeGreaterThan(20);
    expect(
      named.filter((name) => !existsSync(join(root, name)) && !existsSync(join(root, 'src', name))),
    ).toEqual([]);
  });

  it.each(['train-in-code', 'own-data', 'one-device'])('README.md shows the example %s as it is', (name) => {
    const example = read(`examples/${name}.ts`).split('\n').slice(1).join('\n').trim();
    expect(read('README.md')).toContain(example);
  });

  it('README.md links only to what is in the package too', () => {
    const { files } = JSON.parse(read('package.json')) as { readonly files: readonly string[] };
    const packed = [...files, 'README.md', 'LICENSE', 'package.json'];
    const links = [...read('README.md').matchAll(/\]\(([^)\s#]+)[^)]*\)/g)].map(([, link]) => link!);
    const isPacked = (link: string) => packed.some((name) => link === name || link.startsWith(`${name}/`));
    expect(links.filter((link) => !/^https?:/.test(link) && !isPacked(link))).toEqual([]);
  });
});
