"""PyTorch as a peer of `tributary bench compute`: a server of JSON lines on stdin and stdout.

What this is: it loads a model of torch_models.py, does full training steps (forward, backward, plain SGD, rate 0.01) on
fixed inputs and says how long they took. What it is not: the judge; the harness alternates the peers and compares them.
Invariant: one request line, one answer line, {"ok": true, ...} or {"ok": false, "error": "..."}; nothing else is
written to stdout. Run it as `python3 -B torch_peer.py` with OPENBLAS_CORETYPE set by the parent (see peer-process.ts).

Requests
  {"cmd": "info"}                         -> versions, threads, BLAS core type, vector width
  {"cmd": "variants", "model": M}         -> {"variants": [...]} worth racing, the usual winner first
  {"cmd": "load", "model": M, "batch": N, "variant": "a+b", "tensors": PATH, "seed": S}
                                          -> {"params": [{name, shape}], "inputs": [{name, dtype, shape}]}
      tensors (optional): a JSON file {"data": "file.bin" beside it, "tensors": [{name, dtype: "float32" | "int32", shape,
      byteOffset}]}, little-endian, row-major. Names are those of the plain nn.Module (Linear weights [out, in]) and
      the inputs x and y. What is absent is drawn from the seed.
  {"cmd": "step"}                         -> {"loss": ...} of the batch before the update of this step
  {"cmd": "time", "steps": N}             -> {"seconds": ..., "loss": ...} of N steps, loss of the last
  {"cmd": "close"}                        -> ends the process
Variant flags: sparse (embedding gradients), channels_last, no_mkldnn, trace, script, one of optim | optim_foreach (else the
update is two calls without the optimizer's bookkeeping), and the rewritings that torch_models.py lists.
"""

import ctypes
import gc
import json
import os
import sys
import time

# Answers go to a private copy of stdout, so that a stray print of a library cannot corrupt the protocol.
ANSWERS = os.fdopen(os.dup(1), "w", buffering=1)
os.dup2(2, 1)

try:
    import torch

    from torch_models import MODELS
except ImportError as error:
    sys.stdin.readline()
    ANSWERS.write(json.dumps({"ok": False, "missing": error.name or "torch", "error": str(error)}) + "\n")
    sys.exit(0)

RATE = 0.01
FLAGS = {"sparse", "channels_last", "no_mkldnn", "trace", "script", "optim", "optim_foreach"}

# Ordered by what was measured; the plain module is always among them, so that a rewriting can lose.
VARIANTS = {
    "mlp": ["", "trace", "optim_foreach"],
    "textcnn": ["sparse+unfold", "sparse+windows", "sparse+max_index", "sparse", "unfold", ""],
    "cnn": ["channels_last+pool_first", "channels_last", ""],
    "lstm-lm": ["sparse+time_major", "sparse", "time_major", ""],
    "transformer": ["sparse+by_hand", "by_hand", "sparse", ""],
    "resnet": ["channels_last", ""],
}


def fail(message):
    raise ValueError(message)


def blas_core():
    """The kernels OpenBLAS chose, asked from the library that is mapped already."""
    with open("/proc/self/maps") as maps:
        paths = {line.split()[-1] for line in maps if "blas" in line}
    for path in sorted(paths):
        try:
            name = ctypes.CDLL(path).openblas_get_corename
        except (OSError, AttributeError):
            continue
        name.restype = ctypes.c_char_p
        return name().decode()
    return "no OpenBLAS"


def info():
    return {
        "peer": "torch",
        "version": torch.__version__,
        "threads": torch.get_num_threads(),
        "interopThreads": torch.get_num_interop_threads(),
        "blasCore": blas_core(),
        "cpuCapability": next((l.split(":")[1].strip() for l in torch.__config__.show().splitlines() if "CPU capability" in l), "?"),
        "mkldnn": torch.backends.mkldnn.is_available(),
        "models": sorted(MODELS),
    }


def read_tensors(path):
    """Checked against the size of the data file: a wrong offset is an error here, not a crash below."""
    with open(path) as file:
        manifest = json.load(file)
    data = os.path.join(os.path.dirname(path), os.path.basename(manifest["data"]))
    with open(data, "rb") as file:
        content = bytearray(file.read())
    tensors = {}
    for entry in manifest["tensors"]:
        dtype = {"float32": torch.float32, "int32": torch.int32}[entry["dtype"]]
        count = 1
        for size in entry["shape"]:
            count *= size
        offset = entry["byteOffset"]
        if offset < 0 or offset % 4 or offset + 4 * count > len(content):
            fail(f"tensor {entry['name']} needs bytes {offset} to {offset + 4 * count}, but {data} has {len(content)}")
        tensors[entry["name"]] = torch.frombuffer(content, dtype=dtype, count=count, offset=offset).reshape(entry["shape"])
    return tensors


class Training:
    """One model with fixed inputs; `step` is all that is timed."""

    def __init__(self, request):
        name, batch = request["model"], request["batch"]
        flags = {flag for flag in (request.get("variant") or "").split("+") if flag}
        rewritings = MODELS.get(name) or fail(f"model {name!r} is unknown; expected one of {sorted(MODELS)}")
        chosen = flags & set(rewritings)
        unknown = flags - FLAGS - set(rewritings)
        if unknown or len(chosen) > 1:
            fail(f"variant flags {sorted(unknown or chosen)} do not fit model {name}; expected some of {sorted(FLAGS)} and at most one of {sorted(set(rewritings) - {''})}")
        torch._C._set_mkldnn_enabled("no_mkldnn" not in flags)
        torch.manual_seed(request.get("seed", 1))
        plain = rewritings[""](flags)
        x_y_seed = torch.initial_seed()
        model = rewritings[next(iter(chosen), "")](flags)
        torch.manual_seed(x_y_seed)
        self.shapes = [{"name": key, "shape": list(value.shape)} for key, value in plain.named_parameters()]
        spec = model.inputs(batch)
        self.inputs = [{"name": key, "dtype": dtype, "shape": shape} for key, (dtype, shape, _) in spec.items()]
        given = read_tensors(request["tensors"]) if request.get("tensors") else {}
        self.fill(model, dict(plain.named_parameters()), given)
        del plain
        x, y = (self.input(key, spec[key], given) for key in ("x", "y"))
        if "channels_last" in flags:
            model, x = model.to(memory_format=torch.channels_last), x.contiguous(memory_format=torch.channels_last)
        self.params = list(model.parameters())
        self.batch = (x, y)
        if "script" in flags:
            model = torch.jit.script(model)
        elif "trace" in flags:
            model = torch.jit.trace(model, self.batch, check_trace=False)
        self.model = model
        self.optimizer = None
        if flags & {"optim", "optim_foreach"}:
            self.optimizer = torch.optim.SGD(self.params, lr=RATE, foreach="optim_foreach" in flags)

    @staticmethod
    def fill(model, plain, given):
        own = dict(model.named_parameters())
        with torch.no_grad():
            # The plain module's values first, so that all variants start alike from one seed.
            for name, value in (*plain.items(), *given.items()):
                if name in ("x", "y"):
                    continue
                if name not in plain:
                    fail(f"parameter {name} is unknown; expected one of {sorted(plain)}")
                if list(value.shape) != list(plain[name].shape):
                    fail(f"parameter {name} has shape {list(value.shape)}, expected {list(plain[name].shape)}")
                own[name].copy_(model.store(name, value))

    @staticmethod
    def input(name, spec, given):
        dtype, shape, bound = spec
        if name not in given:
            return torch.randn(shape) if dtype == "float32" else torch.randint(bound, shape)
        value = given[name]
        if list(value.shape) != shape or str(value.dtype) != f"torch.{dtype}":
            fail(f"input {name} is {value.dtype} {list(value.shape)}, expected {dtype} {shape}")
        if bound is not None and (int(value.min()) < 0 or int(value.max()) >= bound):
            fail(f"input {name} reaches {int(value.min())} to {int(value.max())}, expected 0 to {bound - 1}")
        # Labels must be 64-bit for cross_entropy; the conversion is outside the timed step.
        return value.clone() if dtype == "float32" else value.long()

    def step(self):
        loss = self.model(*self.batch)
        loss.backward()
        if self.optimizer is not None:
            self.optimizer.step()
            self.optimizer.zero_grad(set_to_none=True)
            return loss
        with torch.no_grad():
            dense, grads = [], []
            for param in self.params:
                grad = param.grad
                if grad.is_sparse:
                    # Adding rows one after another spares the sort of coalesce(); repeated rows add up the same.
                    param.index_add_(0, grad._indices()[0], grad._values(), alpha=-RATE)
                else:
                    dense.append(param)
                    grads.append(grad)
                param.grad = None
            torch._foreach_add_(dense, grads, alpha=-RATE)
        return loss

    def time(self, steps):
        if not isinstance(steps, int) or steps < 1:
            fail(f"steps is {steps!r}, expected a whole number of at least 1")
        gc.collect()
        gc.disable()
        try:
            start = time.perf_counter()
            for _ in range(steps):
                loss = self.step()
            seconds = time.perf_counter() - start
        finally:
            gc.enable()
        return {"seconds": seconds, "loss": loss.item()}


def main():
    torch.set_num_threads(1)
    torch.set_num_interop_threads(1)
    torch.set_flush_denormal(True)
    training = None
    for line in sys.stdin:
        try:
            request = json.loads(line)
            command = request.get("cmd")
            if command == "info":
                answer = info()
            elif command == "variants":
                name = request.get("model")
                answer = {"variants": VARIANTS.get(name) or fail(f"model {name!r} is unknown; expected one of {sorted(VARIANTS)}")}
            elif command == "load":
                training = None
                training = Training(request)
                answer = {"params": training.shapes, "inputs": training.inputs}
            elif command in ("step", "time") and training is None:
                fail("no model is loaded; send a load request first")
            elif command == "step":
                answer = {"loss": training.step().item()}
            elif command == "time":
                answer = training.time(request.get("steps"))
            elif command == "close":
                return
            else:
                fail(f"command {command!r} is unknown; expected info, variants, load, step, time or close")
            answer["ok"] = True
        except Exception as error:  # The parent decides; a peer that dies leaves it without a reason.
            answer = {"ok": False, "error": f"{type(error).__name__}: {error}"}
        ANSWERS.write(json.dumps(answer) + "\n")


main()
