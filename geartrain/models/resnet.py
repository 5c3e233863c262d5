"""ResNet-50: bottleneck blocks, the stride in the 3x3 convolution ("v1.5").

    y = relu(x' + conv1x1(relu(conv3x3(relu(conv1x1(x))))))       x' = x, or a 1x1 convolution of x where shapes change

25,557,032 parameters and 4.1 G multiply-adds per image of 224x224x3 in forward.

Source: He, Zhang, Ren, Sun: Deep Residual Learning for Image Recognition (2015, arXiv 1512.03385, table 1, figure 5).
Differs from the paper: it strides in the first 1x1 convolution of a block; most later implementations do in the 3x3.
"""

from __future__ import annotations

from collections import OrderedDict

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from geartrain.runtime.tracing import trace_workload
from geartrain.workload.spec import Workload

SOURCE = "He et al. 2015, arXiv 1512.03385; 224x224x3 images, 1,000 classes, stride in the 3x3 convolution"
_EXPANSION = 4


def _norm_conv(inputs: int, outputs: int, kernel: int, stride: int = 1) -> tuple[nn.Conv2d, nn.BatchNorm2d]:
    conv = nn.Conv2d(inputs, outputs, kernel, stride=stride, padding=kernel // 2, bias=False)
    return conv, nn.BatchNorm2d(outputs)


class Bottleneck(nn.Module):
    """1x1 down to `width` channels, 3x3, 1x1 up to four times as many, and the residual."""

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        outputs = width * _EXPANSION
        self.conv1, self.bn1 = _norm_conv(inputs, width, 1)
        self.conv2, self.bn2 = _norm_conv(width, width, 3, stride)
        self.conv3, self.bn3 = _norm_conv(width, outputs, 1)
        self.relu = nn.ReLU(inplace=True)
        changes = stride != 1 or inputs != outputs
        self.shortcut = nn.Sequential(*_norm_conv(inputs, outputs, 1, stride)) if changes else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        y = self.relu(self.bn1(self.conv1(x)))
        y = self.relu(self.bn2(self.conv2(y)))
        y = self.bn3(self.conv3(y))
        y += self.shortcut(x)
        out: Tensor = self.relu(y)
        return out


def _stage(inputs: int, width: int, depth: int, stride: int) -> nn.Sequential:
    blocks = [Bottleneck(inputs, width, stride)]
    blocks += [Bottleneck(width * _EXPANSION, width, 1) for _ in range(depth - 1)]
    return nn.Sequential(*blocks)


def resnet50(num_classes: int = 1000) -> nn.Sequential:
    """A new model for images of shape (samples, 3, height, width); draws its weights from the global generator."""
    conv, norm = _norm_conv(3, 64, 7, 2)
    return nn.Sequential(
        OrderedDict(
            conv1=conv,
            bn1=norm,
            relu=nn.ReLU(inplace=True),
            pool=nn.MaxPool2d(3, stride=2, padding=1),
            layer1=_stage(64, 64, 3, 1),
            layer2=_stage(256, 128, 4, 2),
            layer3=_stage(512, 256, 6, 2),
            layer4=_stage(1024, 512, 3, 2),
            mean=nn.AdaptiveAvgPool2d(1),
            flatten=nn.Flatten(),
            fc=nn.Linear(512 * _EXPANSION, num_classes),
        )
    )


def resnet50_workload() -> Workload:
    """One step of ResNet-50 on images of 224x224, cross entropy, SGD with momentum; allocates nothing."""
    with torch.device("meta"):
        model, images = resnet50(), torch.empty(1, 3, 224, 224)

    def loss(scores: Tensor) -> Tensor:
        return F.cross_entropy(scores, scores.new_empty(len(scores), dtype=torch.long))

    return trace_workload(model, [images], loss, name="resnet50", source=SOURCE)
