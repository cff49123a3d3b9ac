/**
 * What the transformer models share: token and position embeddings, and the pre-norm block (normalise, mix, add),
 * which trains without a warm-up of many steps. Not a model.
 */
import {
  add,
  dropout,
  embedding,
  gelu,
  layerNorm,
  linear,
  multiHeadAttention,
  normal,
  type Tensor,
} from '../graph/index.ts';

export interface BlockOptions {
  /** Prefix of the parameter names. */
  readonly name: string;
  /** Attention heads; they divide the width. */
  readonly heads: number;
  /** Units of the feed-forward layer. */
  readonly hidden: number;
  /** Blocks of the whole model: projections onto the residual path start smaller the more of them add up. */
  readonly layers: number;
  /** Probability of dropping an element of what a half of the block adds. */
  readonly dropout: number;
  /** A position sees only itself and earlier ones. Default false. */
  readonly causal?: boolean;
  /** bool, true = may be seen, broadcast to `[N, heads, T, T]`. Default: everything. */
  readonly mask?: Tensor;
}

/** Small, as in GPT-2: attention starts nearly even and the residual path nearly clean. */
const DEVIATION = 0.02;

/** x `[N, T, width]`, and so is the result. */
export function transformerBlock(x: Tensor, options: BlockOptions): Tensor {
  const { name, heads, hidden, causal = false, mask } = options;
  const width = x.shape[2] as number;
  const attended = multiHeadAttention(layerNorm(x, { name: `${name}.norm1` }), {
    name: `${name}.attention`,
    heads,
    causal,
    ...(mask ? { mask } : {}),
  });
  const y = add(x, dropout(attended, options.dropout));
  const inner = gelu(
    linear(layerNorm(y, { name: `${name}.norm2` }), hidden, {
      name: `${name}.expand`,
      initialiser: normal(1 / Math.sqrt(width)),
    }),
  );
  const fed = linear(inner, width, {
    name: `${name}.contract`,
    initialiser: normal(1 / Math.sqrt(2 * options.layers * hidden)),
  });
  return add(y, dropout(fed, options.dropout));
}

export interface TokenEmbeddingOptions {
  readonly vocabulary: number;
  readonly width: number;
  /** This id's vector is zero and stays so. Default: none. */
  readonly paddingIndex?: number;
}

/** The sum of token and position vectors: `[N, T]` to `[N, T, width]`. */
export function embedTokens(tokens: Tensor, options: TokenEmbeddingOptions): Tensor {
  const { vocabulary, width, paddingIndex } = options;
  const initialiser = normal(DEVIATION);
  const vectors = embedding(tokens, vocabulary, width, {
    name: 'embedding',
    initialiser,
    ...(paddingIndex === undefined ? {} : { paddingIndex }),
  });
  const length = tokens.shape[1] as number;
  return add(vectors, tokens.graph.parameter('positions', [length, width], initialiser));
}
