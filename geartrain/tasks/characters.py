"""Next byte of Python source text: a decoder-only transformer on the standard library of the Python that runs it."""

from __future__ import annotations

import hashlib
import math
import sys
import sysconfig
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from geartrain.errors import TaskError
from geartrain.models.gpt2 import GPT2Size, gpt2
from geartrain.runtime.charging import uncharged
from geartrain.runtime.worker import Batch, Batches, Task
from geartrain.tasks.data import DealtBatches

_SIZE = GPT2Size(width=128, depth=4, num_heads=4, vocabulary=256, length=64, dropout=0.0, tied=False)
_MOST = 4_000_000  # bytes of text
_TEST_WINDOWS = 128
# Left out of some distributions of Python or changed by them; encodings and pydoc_data are tables unlike the rest.
_LEFT_OUT = {"distutils", "encodings", "ensurepip", "idlelib", "lib2to3", "pydoc_data", "site", "sysconfig", "tkinter"}
_LEFT_OUT |= {"test", "tests", "turtledemo", "venv"}


def _files(root: Path) -> list[tuple[str, Path]]:
    """(path below the root with "/", file) in the order of the first; of the same Python the same everywhere."""
    found: list[tuple[str, Path]] = []
    for top in sys.stdlib_module_names - _LEFT_OUT:  # whatever else lies there was added
        paths = [root / f"{top}.py", *(root / top).rglob("*.py")]
        found += [(path.relative_to(root).as_posix(), path) for path in paths if path.is_file()]
    return sorted((name, path) for name, path in found if _LEFT_OUT.isdisjoint(name.split("/")[1:]))


def _for_testing(name: str) -> bool:
    return hashlib.sha256(name.encode()).digest()[0] % 10 == 0


@cache
def _text() -> tuple[Tensor, Tensor]:
    """int64[bytes] for training and for testing."""
    parts: dict[bool, list[bytes]] = {False: [], True: []}
    size = 0
    root = Path(sysconfig.get_path("stdlib"))
    for name, path in _files(root):
        text = path.read_bytes()
        if size + len(text) > _MOST:
            break
        size += len(text)
        parts[_for_testing(name)].append(text)
    train, test = (np.frombuffer(b"".join(parts[which]), np.uint8).astype(np.int64) for which in (False, True))
    if min(len(train), len(test)) < _TEST_WINDOWS * (_SIZE.length + 1):
        raise TaskError(f"too little of the standard library's source text lies in {str(root)!r}: {size} bytes")
    return torch.from_numpy(train), torch.from_numpy(test)


def _windows(text: Tensor) -> tuple[Tensor, Tensor]:
    """int64[windows, length] each: windows side by side, and what follows each of their bytes. Views of the text."""
    windows = text.unfold(0, _SIZE.length + 1, _SIZE.length)
    return windows[:, :-1], windows[:, 1:]


def _test_sample() -> tuple[Tensor, Tensor]:
    """128 windows spread evenly over the text for testing."""
    inputs, targets = _windows(_text()[1])
    chosen = torch.linspace(0, len(inputs) - 1, _TEST_WINDOWS).long()
    return inputs[chosen], targets[chosen]


class Characters(Task):
    """Predict the next byte of Python source text.

        loss = mean over the 64 bytes of a window of -log p(byte | the bytes before it in the window)

    A GPT-2 of width 128 with 4 blocks of 4 heads, a context of 64, no dropout, and a head that is not tied to the
    embedding: 867,072 parameters, 3.5 MB of gradients. AdamW, learning rate 0.001, meant for global batches of about 16
    windows (all chosen). A step of 16 takes 88 to 100 ms on one core.

    Data: the standard library's source text, whole files in the order of their paths up to 4,000,000 bytes; without
    tests, without what some distributions of Python leave out (idlelib, tkinter, ...) and without tables of characters
    (encodings, pydoc_data). Files whose path's SHA-256 starts with a byte divisible by ten are for testing. A sample is
    one of the windows that lie side by side, so that an epoch predicts each byte once. The same Python has the same
    text on every machine; another version has slightly different text.

    One process, batch 16, seed 0, measured with the text of Python 3.11.7 (3,580,940 bytes for training, 396,416 for
    testing): held-out loss 2.71 after 50 steps, 2.51 after 100, 2.33 after 200 (3.36 bits per byte, accuracy 0.403),
    2.19 after 300; a guess has 5.55. The metric looks at 8,192 bytes in 0.4 s.
    """

    name = "characters"
    source = "source text of Python's standard library, as installed"
    sample_kind = "windows"

    def model(self, seed: int) -> nn.Module:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return gpt2(_SIZE)

    def optimizer(self, params: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
        return torch.optim.AdamW(params, lr=0.001, betas=(0.9, 0.95), weight_decay=0.1, foreach=True)

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        return F.cross_entropy(model(batch.inputs).flatten(0, 1), batch.targets.flatten())

    def metric(self, model: nn.Module) -> dict[str, float]:
        """Bits per byte, accuracy and loss on 8,192 held-out bytes; empty for a model without numbers."""
        device = next(model.parameters()).device
        if device.type == "meta":
            return {}
        inputs, targets = _test_sample()
        training = model.training
        with uncharged(), torch.no_grad():
            scores = model.eval()(inputs.to(device)).cpu().flatten(0, 1)
            loss = F.cross_entropy(scores, targets.flatten()).item()
            accuracy = float((scores.argmax(1) == targets.flatten()).float().mean())
        model.train(training)
        return {"bits_per_byte": loss / math.log(2), "accuracy": accuracy, "loss": loss}

    def batches(self, rank: int, num_workers: int, batch: int, seed: int) -> Batches:
        inputs, targets = _windows(_text()[0])
        return DealtBatches(inputs, targets, rank=rank, num_workers=num_workers, batch=batch, seed=seed)

    def cuts(self) -> Sequence[str]:
        return ("embedding", *(f"block{index}" for index in range(_SIZE.depth)), "norm", "head")
