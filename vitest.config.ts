import { defineConfig } from 'vitest/config';
import { COMPILED_MODULES, compiledSources } from './test/support/compiled-sources.ts';
import { packageFolder } from './test/support/test-program.ts';

/** Tests that have deadlines of seconds between many processes: they have the machine to themselves. */
const ALONE = [
  ...['collectives', 'communication', 'progress'].map((folder) => `test/${folder}/**/*.test.ts`),
  'test/system/kill.test.ts',
];

const settings = {
  testTimeout: 60_000,
  hookTimeout: 60_000,
  pool: 'forks' as const,
  server: { deps: { external: [COMPILED_MODULES] } },
};
const plugins = [compiledSources()];

export default defineConfig({
  test: {
    globalSetup: 'test/support/compile-programs.ts',
    // Vitest does not know which tests load what is compiled of them.
    forceRerunTriggers: [`${packageFolder}src/**`],
    projects: [
      {
        plugins,
        test: {
          ...settings,
          name: 'side by side',
          include: ['test/**/*.test.ts'],
          exclude: ALONE,
          maxWorkers: 2,
          sequence: { groupOrder: 0 },
        },
      },
      {
        plugins,
        test: { ...settings, name: 'alone', include: ALONE, maxWorkers: 1, sequence: { groupOrder: 1 } },
      },
    ],
  },
});
