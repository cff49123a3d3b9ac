"""The models of `tributary bench compute`, written as PyTorch users write them.

What this is: one class for each model, its input shapes, and rewritings of it that may be faster. What it is not:
a loop, a timer or a protocol (torch_peer.py). Invariant: every variant of a model has the same parameters under the
same canonical names and shapes (those of the plain nn.Module) and computes the same loss; a variant that stores a
parameter in another layout converts it in `store`.
"""

import math

import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    """`forward(x, y)` is the mean loss of the batch; x and y are described by `inputs`."""

    @staticmethod
    def inputs(batch):
        """name -> (dtype, shape, upper bound of the integers)"""
        raise NotImplementedError

    def store(self, name, value):
        """Canonical parameter -> the layout this variant keeps. Canonical already, unless overridden."""
        return value


def images(batch, *shape):
    return {"x": ("float32", [batch, *shape], None), "y": ("int32", [batch], 10)}


class Mlp(Model):
    """784-1024-1024-10, ReLU."""

    def __init__(self, flags):
        super().__init__()
        self.fc1, self.fc2, self.fc3 = nn.Linear(784, 1024), nn.Linear(1024, 1024), nn.Linear(1024, 10)

    @staticmethod
    def inputs(batch):
        return images(batch, 784)

    def forward(self, x, y):
        return F.cross_entropy(self.fc3(F.relu(self.fc2(F.relu(self.fc1(x))))), y)


class MlpMkldnn(Mlp):
    """The products by oneDNN instead of BLAS."""

    def forward(self, x, y):
        x = x.to_mkldnn()
        for layer in (self.fc1, self.fc2):
            x = torch.relu(torch._C._nn.mkldnn_linear(x, layer.weight, layer.bias))
        return F.cross_entropy(self.fc3(x.to_dense()), y)


class MlpConv(Mlp):
    """The products as 1x1 convolutions, which oneDNN computes."""

    def forward(self, x, y):
        x = x[:, :, None, None]
        for layer in (self.fc1, self.fc2):
            x = torch.relu(F.conv2d(x, layer.weight[:, :, None, None], layer.bias))
        return F.cross_entropy(self.fc3(x[:, :, 0, 0]), y)


class TextCnn(Model):
    """Vocabulary 20,000, 128 dims, length 40, widths 3, 4, 5 with 128 filters each, max over time, 77 classes."""

    def __init__(self, flags):
        super().__init__()
        self.embedding = nn.Embedding(20000, 128, sparse="sparse" in flags)
        self.conv3, self.conv4, self.conv5 = nn.Conv1d(128, 128, 3), nn.Conv1d(128, 128, 4), nn.Conv1d(128, 128, 5)
        self.output = nn.Linear(384, 77)

    @staticmethod
    def inputs(batch):
        return {"x": ("int32", [batch, 40], 20000), "y": ("int32", [batch], 77)}

    def forward(self, x, y):
        e = self.embedding(x).transpose(1, 2)
        pooled = [F.relu(self.conv3(e)).amax(2), F.relu(self.conv4(e)).amax(2), F.relu(self.conv5(e)).amax(2)]
        return F.cross_entropy(self.output(torch.cat(pooled, 1)), y)


class TextCnnMaxPool(TextCnn):
    """Max over time by max_pool1d, whose gradient has one index where that of amax compares all."""

    def forward(self, x, y):
        e = self.embedding(x).transpose(1, 2)
        pooled = []
        for conv in (self.conv3, self.conv4, self.conv5):
            pooled.append(F.relu(conv(e).max(2)[0]))
        return F.cross_entropy(self.output(torch.cat(pooled, 1)), y)


class TextCnnUnfold(TextCnn):
    """Windows side by side in memory, then one product for each width. Weights are kept as [filters, width * dims]."""

    def __init__(self, flags):
        super().__init__(flags)
        for name in ("conv3", "conv4", "conv5"):
            conv = getattr(self, name)
            conv.weight = nn.Parameter(self.store(name + ".weight", conv.weight.detach()))

    def store(self, name, value):
        if name.startswith("conv") and name.endswith(".weight"):
            return value.transpose(1, 2).reshape(value.shape[0], -1).contiguous()
        return value

    def forward(self, x, y):
        e = self.embedding(x)
        pooled = []
        for width, conv in ((3, self.conv3), (4, self.conv4), (5, self.conv5)):
            windows = torch.cat([e[:, i : 41 - width + i] for i in range(width)], 2)
            pooled.append(F.relu(F.linear(windows, conv.weight, conv.bias).max(1)[0]))
        return F.cross_entropy(self.output(torch.cat(pooled, 1)), y)


class TextCnnStrided(TextCnnUnfold):
    """As above, but the windows are looked up in the table: no copy, and its gradient is the embedding's own."""

    def forward(self, x, y):
        pooled = []
        for width, conv in ((3, self.conv3), (4, self.conv4), (5, self.conv5)):
            windows = self.embedding(x.unfold(1, width, 1)).flatten(2)
            pooled.append(F.relu(F.linear(windows, conv.weight, conv.bias).max(1)[0]))
        return F.cross_entropy(self.output(torch.cat(pooled, 1)), y)


class Cnn(Model):
    """1x28x28: conv 32 3x3, relu, conv 64 3x3, relu, max pool 2, dense 128, relu, dense 10. No padding."""

    def __init__(self, flags):
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(1, 32, 3), nn.Conv2d(32, 64, 3)
        self.fc1, self.fc2 = nn.Linear(9216, 128), nn.Linear(128, 10)

    @staticmethod
    def inputs(batch):
        return images(batch, 1, 28, 28)

    def forward(self, x, y):
        x = F.max_pool2d(F.relu(self.conv2(F.relu(self.conv1(x)))), 2)
        return F.cross_entropy(self.fc2(F.relu(self.fc1(torch.flatten(x, 1)))), y)


class CnnPoolFirst(Cnn):
    """relu after the pooling: the same values on a quarter of the elements."""

    def forward(self, x, y):
        x = F.relu(F.max_pool2d(self.conv2(F.relu(self.conv1(x))), 2))
        return F.cross_entropy(self.fc2(F.relu(self.fc1(torch.flatten(x, 1)))), y)


class LstmLm(Model):
    """Vocabulary 10,000, embedding 128, hidden 256, 20 steps, zero initial state, mean over all positions."""

    def __init__(self, flags):
        super().__init__()
        self.embedding = nn.Embedding(10000, 128, sparse="sparse" in flags)
        self.lstm = nn.LSTM(128, 256, batch_first=True)
        self.output = nn.Linear(256, 10000)

    @staticmethod
    def inputs(batch):
        return {"x": ("int32", [batch, 20], 10000), "y": ("int32", [batch, 20], 10000)}

    def forward(self, x, y):
        h, _ = self.lstm(self.embedding(x))
        return F.cross_entropy(self.output(h).flatten(0, 1), y.flatten())


class LstmTimeMajor(LstmLm):
    """Time first, as the kernel wants it; the mean does not mind the order."""

    def __init__(self, flags):
        super().__init__(flags)
        self.lstm = nn.LSTM(128, 256)

    def forward(self, x, y):
        h, _ = self.lstm(self.embedding(x.t()))
        return F.cross_entropy(self.output(h.flatten(0, 1)), y.t().flatten())


class Transformer(Model):
    """Vocabulary 10,000, learned positions, width 128, 4 heads, ff 512, 2 post-norm layers, length 64, mean pool, 10 classes."""

    def __init__(self, flags):
        super().__init__()
        self.embedding = nn.Embedding(10000, 128, sparse="sparse" in flags)
        self.position = nn.Parameter(torch.randn(64, 128) * 0.02)
        layer = nn.TransformerEncoderLayer(128, 4, 512, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.output = nn.Linear(128, 10)

    @staticmethod
    def inputs(batch):
        return {"x": ("int32", [batch, 64], 10000), "y": ("int32", [batch], 10)}

    def forward(self, x, y):
        h = self.encoder(self.embedding(x) + self.position)
        return F.cross_entropy(self.output(h.mean(1)), y)


class TransformerByHand(Transformer):
    """Attention written out: fewer copies than nn.MultiheadAttention."""

    def forward(self, x, y):
        h = self.embedding(x) + self.position
        batch, length, width = h.shape
        for layer in self.encoder.layers:
            attention = layer.self_attn
            qkv = F.linear(h, attention.in_proj_weight, attention.in_proj_bias)
            q, k, v = qkv.view(batch, length, 3, 4, 32).permute(2, 0, 3, 1, 4).reshape(3, batch * 4, length, 32).unbind(0)
            scores = torch.softmax(torch.bmm(q * (1 / math.sqrt(32)), k.transpose(1, 2)), -1)
            mixed = torch.bmm(scores, v).view(batch, 4, length, 32).transpose(1, 2).reshape(batch, length, width)
            h = layer.norm1(h + attention.out_proj(mixed))
            h = layer.norm2(h + layer.linear2(F.relu(layer.linear1(h))))
        return F.cross_entropy(self.output(h.mean(1)), y)


class BasicBlock(nn.Module):
    def __init__(self, inside, outside, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(inside, outside, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outside)
        self.conv2 = nn.Conv2d(outside, outside, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outside)
        self.shortcut = nn.Sequential()
        if stride != 1 or inside != outside:
            self.shortcut = nn.Sequential(nn.Conv2d(inside, outside, 1, stride, bias=False), nn.BatchNorm2d(outside))

    def forward(self, x):
        h = F.relu(self.bn1(self.conv1(x)), inplace=True)
        return F.relu(self.bn2(self.conv2(h)) + self.shortcut(x), inplace=True)


class ResNet(Model):
    """3x32x32: conv 16 3x3 + bn + relu, stages 16-32-64 of 2 basic blocks (1x1 conv + bn shortcut), average pool, dense 10."""

    def __init__(self, flags):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(3, 16, 3, 1, 1, bias=False), nn.BatchNorm2d(16)
        self.stages = nn.Sequential(
            nn.Sequential(BasicBlock(16, 16, 1), BasicBlock(16, 16, 1)),
            nn.Sequential(BasicBlock(16, 32, 2), BasicBlock(32, 32, 1)),
            nn.Sequential(BasicBlock(32, 64, 2), BasicBlock(64, 64, 1)),
        )
        self.output = nn.Linear(64, 10)

    @staticmethod
    def inputs(batch):
        return images(batch, 3, 32, 32)

    def forward(self, x, y):
        h = self.stages(F.relu(self.bn1(self.conv1(x)), inplace=True))
        return F.cross_entropy(self.output(h.mean((2, 3))), y)


# model -> rewriting flag ("" is the plain module) -> class
MODELS = {
    "mlp": {"": Mlp, "mkldnn_linear": MlpMkldnn, "conv_linear": MlpConv},
    "textcnn": {"": TextCnn, "max_index": TextCnnMaxPool, "unfold": TextCnnUnfold, "windows": TextCnnStrided},
    "cnn": {"": Cnn, "pool_first": CnnPoolFirst},
    "lstm-lm": {"": LstmLm, "time_major": LstmTimeMajor},
    "transformer": {"": Transformer, "by_hand": TransformerByHand},
    "resnet": {"": ResNet},
}
