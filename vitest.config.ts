import { defineConfig } from 'vitest/config';

/** Tests that have deadlines of seconds between many processes: they have the machine to themselves. */
const ALONE = [
  ...['collectives', 'communication', 'progress'].map((folder) => `test/${folder}/**/*.test.ts`),
  'test/system/kill.test.ts',
];

const settings = { testTimeout: 60_000, hookTimeout: 60_000, pool: 'forks' } as const;

export default defineConfig({
  test: {
    globalSetup: 'test/support/compile-programs.ts',
    projects: [
      {
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
        test: { ...settings, name: 'alone', include: ALONE, maxWorkers: 1, sequence: { groupOrder: 1 } },
      },
    ],
  },
});
