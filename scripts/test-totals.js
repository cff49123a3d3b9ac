// Reads the results that `run-tests.js` wrote and prints one line: `N passed, N failed, N skipped`. Without the file
// nothing was run, and that is a failure too.
import { readFileSync } from 'node:fs';
import { totalsOf } from './test-results.js';

let report;
try {
  report = JSON.parse(readFileSync(process.argv[2] ?? '', 'utf8'));
} catch (error) {
  console.error(`No test results: ${error instanceof Error ? error.message : String(error)}`);
  console.log('0 passed, 1 failed, 0 skipped');
  process.exit(1);
}
const { passed, failed, skipped } = totalsOf(report);
console.log(`${passed} passed, ${failed} failed, ${skipped} skipped`);
