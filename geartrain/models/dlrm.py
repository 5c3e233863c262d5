"""DLRM: recommendation from dense features and many tables of vectors, of which each sample looks up a few.

    d = bottom(dense)                          linear maps and relu, the last as wide as a table's vectors
    e_t = sum of the looked-up rows of table t
    z = all products <u, v> of two different ones of d, e_1, ..., e_T
    score = top(d, z)                          linear maps and relu, the last to one number

Tables are most of the parameters and next to none of the arithmetic. Which rows are looked up decides how often a cache
has them: setting `skew` is the exponent of Zipf's law, by which row i comes with a probability in proportion to
i^-skew.

Source: Naumov et al.: Deep learning recommendation model (2019, arXiv 1906.00091, section 2); sizes of `dlrm` and
`dlrm-ddp`: Lin et al., universal performance modeling of recommendation (2024, arXiv 2404.12674; its code); of
`dlrm-mlperf`: MLPerf Training, click logs of Criteo with at most 40 million rows a table. Differs from them: gradients
of tables are dense, as DDP makes them; every table of a preset is looked up the same number of times.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from geartrain.models.preset import SKEW, Preset

_CRITEO_ROWS = (
    *(39_884_406, 39_043, 17_289, 7_420, 20_263, 3, 7_120, 1_543, 63, 38_532_951, 2_953_546, 403_346, 10),
    *(2_208, 11_938, 155, 4, 976, 14, 39_979_771, 25_641_295, 39_664_984, 585_935, 12_972, 108, 36),
)


@dataclass(frozen=True, kw_only=True)
class DLRMSize:
    """The shape of a model.

    Attributes:
        bottom: widths, from that of the dense features to that of a table's vectors.
        rows: of each table.
        top: widths of the maps after the products, the last 1.
        lookups: rows that a sample looks up in each table.
    """

    bottom: tuple[int, ...]
    rows: tuple[int, ...]
    top: tuple[int, ...]
    lookups: int


def _maps(widths: Sequence[int], last: nn.Module) -> nn.Sequential:
    parts: list[nn.Module] = []
    for inputs, outputs in itertools.pairwise(widths):
        parts += [nn.Linear(inputs, outputs), nn.ReLU()]
    return nn.Sequential(*parts[:-1], last)


class Products(nn.Module):
    """(samples, n, width) -> (samples, n (n - 1) / 2), the product of each pair."""

    pairs: Tensor

    def __init__(self, count: int) -> None:
        super().__init__()
        below = [row * count + column for row in range(count) for column in range(row)]
        self.register_buffer("pairs", torch.tensor(below), persistent=False)

    def forward(self, vectors: Tensor) -> Tensor:
        products = vectors @ vectors.transpose(1, 2)
        return products.flatten(1).index_select(1, self.pairs)


class DLRM(nn.Module):
    """dense (samples, features) and int64 (samples, tables, lookups) -> (samples, 1), the logit of a click."""

    def __init__(self, size: DLRMSize) -> None:
        super().__init__()
        width, count = size.bottom[-1], len(size.rows) + 1
        self.bottom = _maps(size.bottom, nn.ReLU())
        self.tables = nn.ModuleList(nn.EmbeddingBag(rows, width, mode="sum") for rows in size.rows)
        self.products = Products(count)
        self.top = _maps((width + count * (count - 1) // 2, *size.top), nn.Identity())

    def forward(self, dense: Tensor, indices: Tensor) -> Tensor:
        first = self.bottom(dense)
        looked_up = [table(indices[:, at]) for at, table in enumerate(self.tables)]
        products = self.products(torch.stack([first, *looked_up], dim=1))
        logit: Tensor = self.top(torch.cat([first, products], dim=1))
        return logit


def _click_loss(logits: Tensor) -> Tensor:
    return F.binary_cross_entropy_with_logits(logits, torch.empty_like(logits))


def _preset(size: DLRMSize, num_parameters: int, source: str) -> Preset:
    def model(lookups: int) -> DLRM:
        return DLRM(replace(size, lookups=lookups))

    def example(lookups: int, **_: Any) -> tuple[Tensor, Tensor]:
        indices = torch.empty(1, len(size.rows), lookups, dtype=torch.long)
        return torch.empty(1, size.bottom[0]), indices

    return Preset(
        model=model,
        example=example,
        num_parameters=num_parameters,
        source=source,
        loss=_click_loss,
        settings={"lookups": size.lookups, SKEW: 0.0},
    )


_DEFAULT = DLRMSize(bottom=(512, 512, 64), rows=(1_000_000,) * 8, top=(1024, 1024, 1024, 1), lookups=100)
_MLPERF = DLRMSize(bottom=(13, 512, 256, 128), rows=_CRITEO_ROWS, top=(1024, 1024, 512, 256, 1), lookups=1)
_DDP = DLRMSize(bottom=(128,) * 4, rows=(80_000,) * 8, top=(512, 512, 512, 256, 1), lookups=100)

PRESETS = {
    "dlrm": _preset(
        _DEFAULT, 514_499_137, "Naumov et al. 2019, arXiv 1906.00091; 8 tables of 1,000,000 x 64, 100 look-ups in each"
    ),
    "dlrm-ddp": _preset(
        _DDP,
        82_710_913,
        "Naumov et al. 2019, arXiv 1906.00091; 8 tables of 80,000 x 128, 100 look-ups in each (chosen)",
    ),
    "dlrm-mlperf": _preset(
        _MLPERF,
        24_036_595_969,
        "MLPerf Training, DLRM on Criteo's click logs; 26 tables of at most 40 million rows x 128",
    ),
}
