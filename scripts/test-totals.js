// Reads what vitest's JSON reporter wrote and prints one line: `N passed, N failed, N skipped`. A file that failed before
// any of its tests ran counts as one failure. Without the file nothing was run, and that is a failure too.
import { readFileSync } from 'node:fs';

let report;
try {
  report = JSON.parse(readFileSync(process.argv[2] ?? '', 'utf8'));
} catch (error) {
  console.error(`No test results: ${error instanceof Error ? error.message : String(error)}`);
  console.log('0 passed, 1 failed, 0 skipped');
  process.exit(1);
}
const broken = report.testResults.filter(
  ({ status, assertionResults }) =>
    status === 'failed' && !assertionResults.some((result) => result.status === 'failed'),
);
const { numPassedTests: passed, numFailedTests, numPendingTests: pending, numTodoTests: todo } = report;
console.log(`${passed} passed, ${numFailedTests + broken.length} failed, ${pending + todo} skipped`);
