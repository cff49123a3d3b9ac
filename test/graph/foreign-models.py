"""Writes models as other tools would, with the helper API of python3-onnx, into the folder given as argument."""
import sys
import numpy as np
from onnx import TensorProto, checker, helper, numpy_helper, save

rng = np.random.default_rng(7)
F, I64 = TensorProto.FLOAT, TensorProto.INT64


def weight(name, *shape, scale=0.4):
    return numpy_helper.from_array((rng.standard_normal(shape) * scale).astype(np.float32), name)


def ints(name, values):
    return numpy_helper.from_array(np.array(values, dtype=np.int64), name)


def node(op, inputs, outputs, **attributes):
    return helper.make_node(op, inputs.split(), outputs.split(), name=outputs.split()[0] + "_node", **attributes)


def write(name, nodes, inputs, outputs, initializers, opset=17):
    graph = helper.make_graph(nodes, name, inputs, outputs, initializers)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], producer_name="elsewhere")
    model.ir_version = 8
    checker.check_model(model, full_check=True)
    save(model, f"{sys.argv[1]}/{name}.onnx")


def value(name, kind, shape):
    return helper.make_tensor_value_info(name, kind, shape)


write(
    "mlp",
    [
        node("Gemm", "x w1 b1", "a1", transB=1),
        node("Relu", "a1", "h1"),
        node("Dropout", "h1 ratio", "d1"),
        node("Gemm", "d1 w2 b2", "y"),
    ],
    [value("x", F, ["batch", 6])],
    [value("y", F, ["batch", 3])],
    [weight("w1", 8, 6), weight("b1", 8), weight("w2", 8, 3), weight("b2", 3), numpy_helper.from_array(np.float32(0.25), "ratio")],
    opset=13,
)

# A convolution network flattened by Shape, Gather, Unsqueeze, Concat and Reshape.
write(
    "cnn",
    [
        node("Conv", "x k1", "c1", kernel_shape=[3, 3], pads=[1, 1, 1, 1]),
        node("BatchNormalization", "c1 gamma beta mean var", "n1", epsilon=1e-4, momentum=0.8),
        node("Relu", "n1", "r1"),
        node("MaxPool", "r1", "p1", kernel_shape=[2, 2], strides=[2, 2]),
        node("Conv", "p1 k2 kb2", "c2", auto_pad="SAME_UPPER", strides=[2, 2]),
        node("LeakyRelu", "c2", "r2", alpha=0.1),
        node("Shape", "r2", "s"),
        node("Gather", "s zero", "n"),
        node("Unsqueeze", "n axis0", "n_"),
        node("Constant", "", "minus", value=ints("", [-1])),
        node("Concat", "n_ minus", "shape", axis=0),
        node("Reshape", "r2 shape", "flat"),
        node("MatMul", "flat w", "m"),
        node("Add", "m b", "y"),
    ],
    [value("x", F, ["N", 2, 8, 8])],
    [value("y", F, ["N", 3])],
    [
        weight("k1", 4, 2, 3, 3), weight("gamma", 4), weight("beta", 4), weight("mean", 4),
        numpy_helper.from_array(rng.uniform(0.5, 2, 4).astype(np.float32), "var"),
        weight("k2", 5, 4, 2, 2), weight("kb2", 5), ints("zero", 0), ints("axis0", [0]),
        weight("w", 20, 3), weight("b", 3),
    ],
)  # fmt: skip

for kind, gates, extra in (("LSTM", 4, {}), ("GRU", 3, {"linear_before_reset": 1})):
    write(
        "embedding-" + kind.lower(),
        [
            node("Gather", "table tokens", "e"),
            node("Transpose", "e", "t", perm=[1, 0, 2]),
            node("Shape", "t", "s"),
            node("Slice", "s one two axis0", "n"),
            node("Concat", "one n five", "state", axis=0),
            node("ConstantOfShape", "state", "h0"),
            helper.make_node(kind, ["t", "W", "R", "B", "", "h0"], ["ys", "h"], name="rnn", hidden_size=5, **extra),
            node("Squeeze", "ys one", "y3"),
            node("Gather", "y3 last", "final"),
            node("Squeeze", "h axis0", "h2"),
            node("Concat", "final h2", "both", axis=1),
            node("Gemm", "both w b", "y"),
        ],
        [value("tokens", I64, ["N", 6])],
        [value("y", F, ["N", 3])],
        [
            weight("table", 10, 4), weight("W", 1, gates * 5, 4), weight("R", 1, gates * 5, 5), weight("B", 1, 2 * gates * 5),
            ints("one", [1]), ints("two", [2]), ints("five", [5]), ints("axis0", [0]), ints("last", -1),
            weight("w", 10, 3), weight("b", 3),
        ],
    )  # fmt: skip

# A pre-norm attention block: heads by computed shapes, scale from the shape, a bool mask.
write(
    "attention",
    [
        node("LayerNormalization", "x g1 b1", "n1", axis=-1),
        node("MatMul", "n1 wqkv", "qkv"),
        node("Split", "qkv sizes", "q k v", axis=2),
        node("Shape", "x", "s"),
        node("Gather", "s i0", "n"),
        node("Gather", "s i1", "t"),
        node("Gather", "s i2", "c"),
        node("Div", "c heads", "d"),
        node("Unsqueeze", "n axis0", "n_"),
        node("Unsqueeze", "t axis0", "t_"),
        node("Unsqueeze", "d axis0", "d_"),
        node("Concat", "n_ t_ heads1 d_", "split", axis=0),
        node("Reshape", "q split", "q4"),
        node("Reshape", "k split", "k4"),
        node("Reshape", "v split", "v4"),
        node("Transpose", "q4", "qh", perm=[0, 2, 1, 3]),
        node("Transpose", "k4", "kh", perm=[0, 2, 3, 1]),
        node("Transpose", "v4", "vh", perm=[0, 2, 1, 3]),
        node("MatMul", "qh kh", "scores"),
        node("Cast", "d", "df", to=F),
        node("Sqrt", "df", "root"),
        node("Div", "scores root", "scaled"),
        node("Where", "mask scaled hidden", "masked"),
        node("Softmax", "masked", "p", axis=-1),
        node("MatMul", "p vh", "mixed"),
        node("Transpose", "mixed", "back", perm=[0, 2, 1, 3]),
        node("Shape", "x", "s2", end=2),
        node("Constant", "", "rest", value_ints=[-1]),
        node("Concat", "s2 rest", "joined", axis=0),
        node("Reshape", "back joined", "flat"),
        node("MatMul", "flat wo", "o"),
        node("Add", "x o", "x2"),
        node("LayerNormalization", "x2 g2 b2", "n2", axis=2, epsilon=1e-6),
        node("MatMul", "n2 wf", "f"),
        node("Erf", "f", "er"),
        node("Mul", "f er", "ff"),
        node("ReduceMean", "ff", "pooled", axes=[1], keepdims=0),
        node("Gemm", "pooled w b", "y", alpha=0.5, beta=2.0),
    ],
    [value("x", F, ["N", 4, 6])],
    [value("y", F, ["N", 3])],
    [
        weight("g1", 6), weight("b1", 6), weight("g2", 6), weight("b2", 6), weight("wqkv", 6, 18), weight("wo", 6, 6),
        weight("wf", 6, 7), weight("w", 7, 3), weight("b", 3), ints("sizes", [6, 6, 6]), ints("i0", 0), ints("i1", 1),
        ints("i2", 2), ints("heads", 2), ints("heads1", [2]), ints("axis0", [0]),
        numpy_helper.from_array(np.tril(np.ones((4, 4), dtype=bool)), "mask"),
        numpy_helper.from_array(np.float32(-1e9), "hidden"),
    ],
)  # fmt: skip
