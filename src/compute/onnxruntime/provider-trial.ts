/** A program: ends with 0 if a session can be made with the provider named by its argument. Imported by nobody. */
import { OnnxRuntime } from './session.ts';
import type { Provider } from './session-options.ts';

OnnxRuntime.load().tryProvider(process.argv[2] as Provider);
