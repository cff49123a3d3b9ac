/**
 * The functions of `build/kernels.wasm` as they are: numbers in, numbers out, nothing checked. Only the
 * wrappers of this folder call them. Invariant: order and count of the arguments equal those in `assembly/`.
 * Addresses are byte offsets in the memory; `n` counts elements.
 */

export type Eight = [number, number, number, number, number, number, number, number];
/** h0 to h9 of an update rule. */
export type Coefficients = readonly [...Eight, number, number];

export interface KernelExports {
  sumFloat32(k: number, target: number, ...sourcesAndN: [...Eight, n: number]): void;
  meanFloat32(k: number, divisor: number, target: number, ...sourcesAndN: [...Eight, n: number]): void;
  sumToAllFloat32(k: number, streams: boolean, divisor: number, ...sourcesAndN: [...Eight, n: number]): void;
  combineFloat32(op: number, target: number, a: number, b: number, n: number): void;
  combineFloat64(op: number, target: number, a: number, b: number, n: number): void;
  combineInt32(op: number, target: number, a: number, b: number, n: number): void;
  scaleFloat32(target: number, factor: number, n: number): void;
  scaleFloat64(target: number, factor: number, n: number): void;
  divideFloat64(target: number, divisor: number, n: number): void;
  axpyFloat32(target: number, a: number, x: number, n: number): void;
  blendFloat32(target: number, keep: number, x: number, share: number, n: number): void;
  fillFloat32(target: number, value: number, n: number): void;
  copyBytes(target: number, source: number, bytes: number): void;
  clipFloat32(target: number, limit: number, n: number): void;
  dotFloat32(x: number, y: number, n: number): number;
  sumOfSquaresFloat32(x: number, n: number): number;
  absSumFloat32(x: number, n: number): number;
  sumOfPowersFloat32(x: number, factor: number, order: number, n: number): number;
  absMaxFloat32(x: number, n: number): number;
  elastic(worker: number, centre: number, alpha: number, n: number): void;
  update(
    rule: number,
    flags: number,
    parameter: number,
    gradient: number,
    slot0: number,
    slot1: number,
    slot2: number,
    n: number,
    ...coefficients: Coefficients
  ): void;
  sumAndUpdate(
    k: number,
    scratch: number,
    ...rest: readonly [
      ...sources: Eight,
      rule: number,
      flags: number,
      parameter: number,
      slot0: number,
      slot1: number,
      slot2: number,
      n: number,
      ...coefficients: Coefficients,
    ]
  ): void;
  /** Position of the first bad index, or -1. */
  updateRows(
    exact: number,
    indices: number,
    count: number,
    rows: number,
    rowLength: number,
    tableRows: number,
    rule: number,
    flags: number,
    parameter: number,
    slot0: number,
    slot1: number,
    slot2: number,
    ...coefficients: Coefficients
  ): number;
  /** Position of the first bad index, -2 if the plan does not fit, or -1. */
  sumAndUpdateRows(
    indices: number,
    count: number,
    starts: number,
    order: number,
    addresses: number,
    answers: number,
    scratch: number,
    addressCount: number,
    rowLength: number,
    tableRows: number,
    rule: number,
    flags: number,
    parameter: number,
    slot0: number,
    slot1: number,
    slot2: number,
    ...coefficients: Coefficients
  ): number;
  /** False if the plan is of other positions. */
  numberRows(unique: number, starts: number, order: number, numbers: number, n: number): number;
  /** Number of unique indices, or -1 - position of the first bad one. */
  planRows(
    indices: number,
    n: number,
    tableRows: number,
    padding: number,
    unique: number,
    starts: number,
    order: number,
    scratch: number,
  ): number;
  /** 0 if the plan does not fit, else 1. */
  sumRows(
    rows: number,
    rowCount: number,
    rowLength: number,
    unique: number,
    starts: number,
    order: number,
    orderLength: number,
    rowsOut: number,
  ): number;
  /** Position of the first bad index, or -1. */
  blendRows(
    target: number,
    keep: number,
    x: number,
    share: number,
    indices: number,
    count: number,
    rowLength: number,
    times: number,
  ): void;
  addRows(
    target: number,
    tableRows: number,
    rowLength: number,
    indices: number,
    count: number,
    rows: number,
  ): number;
  /** Position of the first bad index, or -1. */
  firstBadIndex(indices: number, count: number, rows: number): number;
  copyRows(
    target: number,
    into: number,
    source: number,
    from: number,
    count: number,
    rowLength: number,
  ): void;
  dropoutMask(
    target: number,
    samples: number,
    perSample: number,
    sampleIds: number,
    seed: number,
    threshold: number,
    kept: number,
  ): void;
  encodeFp16(target: number, source: number, n: number): void;
  decodeFp16(target: number, source: number, n: number): void;
  encodeBf16(target: number, source: number, n: number): void;
  decodeBf16(target: number, source: number, n: number): void;
  encodeTwoBit(packed: number, residual: number, gradient: number, threshold: number, n: number): void;
  decodeTwoBit(target: number, packed: number, threshold: number, n: number): void;
  encodeOneBit(packed: number, residual: number, gradient: number, threshold: number, n: number): void;
  decodeOneBit(target: number, packed: number, n: number): void;
  encodeTopK(
    indices: number,
    values: number,
    residual: number,
    gradient: number,
    k: number,
    n: number,
    scratch: number,
  ): void;
}
