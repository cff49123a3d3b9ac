/**
 * Session options: from our typed form to the native object. The one place that knows execution providers by name.
 * Invariant: the native object is released again if anything here fails.
 */
import { InternalError, UsageError } from '../../base/index.ts';
import { logErrorsOnly } from './api.ts';
import type { OrtApi, Pointer } from './api.ts';

/** Where operations can run; the CPU first, which is always there. */
export const PROVIDERS = ['cpu', 'webgpu', 'cuda'] as const;
export type Provider = (typeof PROVIDERS)[number];

export interface SessionOptions {
  /** Threads that share the work of one operation, counted with the calling one. Default 1. */
  threads?: number;
  /** Where operations run; what a provider cannot do runs on the CPU. Tensors are bound in CPU memory. Default 'cpu'. */
  provider?: Provider;
  /** How far the graph is rewritten before it runs. Default 'all'. */
  optimization?: 'none' | 'basic' | 'extended' | 'all';
  /** Start of the path of a profile (JSON trace); `Session.endProfiling` writes it. Default: no profile. */
  profilePathPrefix?: string;
}

const optimizationLevels = { none: 0, basic: 1, extended: 2, all: 99 } as const;

/**
 * Moves a factor into each product that reads a scaled value, as long as both are in one session: gradients would
 * be rounded otherwise than where the backward pass is cut between the two. Other rewritings join a value only with
 * its one reader, which is always in the same segment.
 */
const DISABLED = 'MatMulScaleFusion';

const providers = {
  webgpu: {
    name: 'WebGpuExecutionProvider',
    install: 'Install a graphics driver (Vulkan, Metal or Direct3D 12)',
  },
  cuda: {
    name: 'CUDAExecutionProvider',
    // The files of the provider lie beside the library, and npm may be set up to run no install scripts.
    install:
      'On Linux x64 install CUDA 12 and cuDNN 9, run "npm install onnxruntime-node", ' +
      'then "node node_modules/onnxruntime-node/script/install.js"',
  },
} as const;

/** The caller releases what comes back. */
export function createSessionOptions(api: OrtApi, options: SessionOptions, available: string[]): Pointer {
  const threads = options.threads ?? 1;
  if (!Number.isInteger(threads) || threads < 1 || threads > 1024) {
    throw new UsageError('INVALID_ARGUMENT', `threads is ${threads}; pass an integer from 1 to 1024.`, {
      threads,
    });
  }
  const { call } = api;
  const native = api.pointer((out) => call.createSessionOptions(out), 'create session options');
  const set = (status: number | bigint): void => api.check(status, 'set a session option');
  try {
    // Sequential: the order of operations is the order of our segments.
    set(call.setSessionExecutionMode(native, 0));
    set(call.enableCpuMemArena(native));
    set(call.enableMemPattern(native));
    set(call.setSessionLogSeverityLevel(native, logErrorsOnly));
    set(call.setSessionGraphOptimizationLevel(native, optimizationLevels[options.optimization ?? 'all']));
    set(call.setIntraOpNumThreads(native, threads));
    set(call.setInterOpNumThreads(native, 1));
    // A spinning thread would take the core from the communication thread or from another worker.
    set(call.addSessionConfigEntry(native, 'session.intra_op.allow_spinning', '0'));
    set(call.addSessionConfigEntry(native, 'session.inter_op.allow_spinning', '0'));
    set(call.addSessionConfigEntry(native, 'optimization.disable_specified_optimizers', DISABLED));
    if (options.profilePathPrefix !== undefined) set(call.enableProfiling(native, options.profilePathPrefix));
    const provider = options.provider ?? 'cpu';
    if (provider !== 'cpu') appendProvider(api, native, provider, available);
    return native;
  } catch (error) {
    call.releaseSessionOptions(native);
    throw error;
  }
}

function appendProvider(
  api: OrtApi,
  native: Pointer,
  provider: Exclude<Provider, 'cpu'>,
  available: readonly string[],
): void {
  const { name, install } = providers[provider];
  const missing = (reason: string, cause?: unknown): UsageError =>
    new UsageError(
      'MISSING_COMPONENT',
      `The provider "${provider}" is not available: ${reason}. ${install}, or use the provider "cpu".`,
      { provider, available },
      cause,
    );
  if (!available.includes(name)) {
    throw missing(`this build of ONNX Runtime ${api.version} has ${available.join(', ')}`);
  }
  try {
    if (provider === 'webgpu') {
      api.check(api.call.appendExecutionProvider(native, 'WebGPU', null, null, 0), `load ${name}`);
    } else {
      const cuda = api.pointer((out) => api.call.createCudaProviderOptions(out), `set up ${name}`);
      try {
        api.check(api.call.appendCudaProvider(native, cuda), `load ${name}`);
      } finally {
        api.call.releaseCudaProviderOptions(cuda);
      }
    }
  } catch (error) {
    if (!(error instanceof InternalError)) throw error;
    throw missing(String(error.facts['reason']), error);
  }
}
