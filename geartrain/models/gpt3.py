"""Models like GPT-3: GPT-2 wider and deeper, 2,048 places.

A model of depth d and width w has d (12 w^2 + 13 w) parameters in its blocks, and (50,257 + 2,048 + 2) w beside them.

Source: Brown et al.: Language models are few-shot learners (2020, arXiv 2005.14165, table 2.1). Differs from the
paper: all attention is dense, where every other layer of the paper's looks at a band of places only; no dropout.
"""

from __future__ import annotations

from geartrain.models.gpt2 import GPT2Size, gpt_preset
from geartrain.models.preset import Preset


def _preset(which: str, width: int, depth: int, num_heads: int, num_parameters: int) -> Preset:
    size = GPT2Size(width=width, depth=depth, num_heads=num_heads, length=2048, dropout=0.0)
    source = (
        f"Brown et al. 2020, arXiv 2005.14165, table 2.1 ({which}); dense attention, 2,048 tokens, tied head, AdamW"
    )
    return gpt_preset(size, num_parameters, source)


PRESETS = {
    "gpt3-1.3b": _preset(
        "XL, with 16 heads of 128 for the 24 there, which do not fill the width", 2048, 24, 16, 1_315_723_264
    ),
    "gpt3-6.7b": _preset("6.7B", 4096, 32, 32, 6_658_404_352),
    "gpt3-175b": _preset("175B", 12_288, 96, 96, 174_604_259_328),
}
