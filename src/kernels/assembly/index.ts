// The kernels: pure functions on addresses of the imported shared memory. No heap, no data of their own.
// Nothing here checks a bound; the wrappers do, before every call.
export * from './reduce';
export * from './norms';
export * from './update';
export * from './rows';
export * from './dropout';
export * from './codecs';
