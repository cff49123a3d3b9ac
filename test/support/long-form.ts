/**
 * The long form of tests, which TRIBUTARY_ACCEPTANCE asks for, has every combination and full counts; the short one a
 * choice of them in which every value occurs at least once. Not for tests that are skipped in the short form.
 */
const isLong = Boolean(process.env['TRIBUTARY_ACCEPTANCE']);

/** The long form of something, or the short one. */
export function byForm<T>(long: T, short: T): T {
  return isLong ? long : short;
}
