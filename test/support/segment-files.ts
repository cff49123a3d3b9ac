/** The named segments of this user as a test sees them: files of one folder, which may not be there before the first segment is. */
import { existsSync, readdirSync } from 'node:fs';
import { defaultSegmentDirectory } from '../../src/memory/index.ts';

/** Names of the files, with the prefix that all segments have. */
export function segmentFiles(): string[] {
  const folder = defaultSegmentDirectory();
  return existsSync(folder) ? readdirSync(folder) : [];
}
