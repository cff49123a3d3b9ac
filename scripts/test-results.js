// What vitest's JSON reporter wrote, and what follows from it: which files failed, whether they fail again, how many
// tests passed. Runs nothing itself. A file that failed before any of its tests ran counts as one failure.

/** The paths of the files in which anything failed. */
export function failedFiles(report) {
  return (report?.testResults ?? []).filter(({ status }) => status === 'failed').map(({ name }) => name);
}

/** `N passed, N failed, N skipped`, in numbers. */
export function totalsOf(report) {
  const totals = { passed: 0, failed: 0, skipped: 0 };
  for (const { status, assertionResults } of report.testResults) {
    const failures = assertionResults.filter((result) => result.status === 'failed').length;
    const passed = assertionResults.filter((result) => result.status === 'passed').length;
    totals.passed += passed;
    totals.skipped += assertionResults.length - passed - failures;
    totals.failed += status === 'failed' ? Math.max(1, failures) : failures;
  }
  return totals;
}

/**
 * Runs all tests, and the files that failed once more. A file that passes then is flaky and counts as passed; one that
 * fails again, or was not run again, has failed. `run(files)` runs these files, or all if the list is empty, and returns
 * the exit code and the report, undefined if none was written.
 */
export function runTwice(run) {
  const first = run([]);
  const failed = failedFiles(first.report);
  // Without a failed file the fault lies outside of files, as an error that nobody caught: running again proves nothing.
  if (first.code === 0 || failed.length === 0) return { ...first, flaky: [] };
  const second = run(failed);
  const again = new Map((second.report?.testResults ?? []).map((result) => [result.name, result]));
  const flaky = failed.filter((name) => again.get(name)?.status === 'passed');
  const testResults = first.report.testResults.map((result) => again.get(result.name) ?? result);
  const isPassed = second.code === 0 && flaky.length === failed.length;
  return { code: isPassed ? 0 : second.code || 1, report: { ...first.report, testResults }, flaky };
}
