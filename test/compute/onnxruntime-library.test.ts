import { existsSync } from 'node:fs';
import { expect, test } from 'vitest';
import { OrtApi } from '../../src/compute/onnxruntime/api.ts';
import { findLibrary } from '../../src/compute/onnxruntime/library.ts';

test('the library shipped with onnxruntime-node is found for this platform', () => {
  expect(existsSync(findLibrary())).toBe(true);
});

test('a failed call becomes an error with the words of the runtime, and a passed one does not', () => {
  const api = new OrtApi();
  const options = api.pointer((out) => api.call.createSessionOptions(out), 'create session options');
  // An empty configuration key is what ONNX Runtime itself refuses.
  expect(() => api.check(api.call.addSessionConfigEntry(options, '', 'x'), 'set an option')).toThrow(
    /failed to set an option: .*key/i,
  );
  api.check(api.call.addSessionConfigEntry(options, 'session.intra_op.allow_spinning', '0'), 'set an option');
  api.call.releaseSessionOptions(options);
});
