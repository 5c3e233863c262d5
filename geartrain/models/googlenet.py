"""GoogLeNet (Inception v1): nine blocks of four parallel paths, without the two auxiliary classifiers.

    y = [conv1x1(x), conv3x3(conv1x1(x)), conv5x5(conv1x1(x)), conv1x1(pool3x3(x))]      joined along the channels

6,998,552 parameters; 1.6 G multiply-adds per image of 224x224x3 in forward.

Source: Szegedy et al.: Going deeper with convolutions (2014, arXiv 1409.4842, table 1), biases and response
normalisation as there. Differs from the paper: no auxiliary classifiers, which later training leaves out.
"""

from __future__ import annotations

from collections import OrderedDict

import torch
from torch import Tensor, nn

from geartrain.models.preset import Preset, class_loss, image

_Sizes = tuple[int, int, int, int, int, int]

# The rows of table 1: 1x1, 3x3 reduce, 3x3, 5x5 reduce, 5x5, pool projection. None: half the size.
_BLOCKS: tuple[tuple[str, _Sizes | None], ...] = (
    ("3a", (64, 96, 128, 16, 32, 32)),
    ("3b", (128, 128, 192, 32, 96, 64)),
    ("pool3", None),
    ("4a", (192, 96, 208, 16, 48, 64)),
    ("4b", (160, 112, 224, 24, 64, 64)),
    ("4c", (128, 128, 256, 24, 64, 64)),
    ("4d", (112, 144, 288, 32, 64, 64)),
    ("4e", (256, 160, 320, 32, 128, 128)),
    ("pool4", None),
    ("5a", (256, 160, 320, 32, 128, 128)),
    ("5b", (384, 192, 384, 48, 128, 128)),
)


def _conv(inputs: int, outputs: int, kernel: int, stride: int = 1) -> nn.Sequential:
    conv = nn.Conv2d(inputs, outputs, kernel, stride=stride, padding=kernel // 2)
    return nn.Sequential(conv, nn.ReLU(inplace=True))


def _halve() -> nn.MaxPool2d:
    return nn.MaxPool2d(3, stride=2, ceil_mode=True)


class Inception(nn.Module):
    """Four paths over the same input, joined along the channels; `sizes` is a row of the table."""

    def __init__(self, inputs: int, sizes: _Sizes) -> None:
        super().__init__()
        one, reduce3, three, reduce5, five, pool = sizes
        self.one = _conv(inputs, one, 1)
        self.three = nn.Sequential(_conv(inputs, reduce3, 1), _conv(reduce3, three, 3))
        self.five = nn.Sequential(_conv(inputs, reduce5, 1), _conv(reduce5, five, 5))
        self.pool = nn.Sequential(nn.MaxPool2d(3, stride=1, padding=1), _conv(inputs, pool, 1))

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([self.one(x), self.three(x), self.five(x), self.pool(x)], dim=1)


def googlenet(num_classes: int = 1000) -> nn.Sequential:
    """A new model for images (samples, 3, 224, 224); draws its weights from the global generator."""
    parts: OrderedDict[str, nn.Module] = OrderedDict(
        conv1=_conv(3, 64, 7, stride=2),
        pool1=_halve(),
        lrn1=nn.LocalResponseNorm(5),
        reduce2=_conv(64, 64, 1),
        conv2=_conv(64, 192, 3),
        lrn2=nn.LocalResponseNorm(5),
        pool2=_halve(),
    )
    channels = 192
    for name, sizes in _BLOCKS:
        if sizes is None:
            parts[name] = _halve()
        else:
            parts[f"inception{name}"] = Inception(channels, sizes)
            channels = sizes[0] + sizes[2] + sizes[4] + sizes[5]
    parts |= OrderedDict(mean=nn.AdaptiveAvgPool2d(1), flatten=nn.Flatten(), dropout=nn.Dropout(0.4))
    parts["fc"] = nn.Linear(channels, num_classes)
    return nn.Sequential(parts)


PRESETS = {
    "googlenet": Preset(
        model=googlenet,
        example=image(),
        num_parameters=6_998_552,
        source="Szegedy et al. 2014, arXiv 1409.4842, table 1; no auxiliary heads, 224x224x3 images, 1,000 classes",
        loss=class_loss,
    ),
}
