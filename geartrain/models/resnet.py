"""ResNet-18 of plain blocks; ResNet-50 and ResNet-152 of bottleneck blocks, the stride in the 3x3 ("v1.5").

    y = relu(x' + conv3x3(relu(conv3x3(x))))                      plain
    y = relu(x' + conv1x1(relu(conv3x3(relu(conv1x1(x))))))       bottleneck
                                                                  x' = x, or a 1x1 convolution of x where shapes change

11,689,512, 25,557,032 and 60,192,808 parameters; 1.8, 4.1 and 11.5 G multiply-adds per image of 224x224x3 in forward.

Source: He, Zhang, Ren, Sun: Deep Residual Learning for Image Recognition (2015, arXiv 1512.03385, table 1, figure 5).
Differs from the paper: it strides in the first 1x1 convolution of a block; most later implementations do in the 3x3.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

from torch import Tensor, nn

from geartrain.models.preset import Preset, class_loss, image


def _norm_conv(inputs: int, outputs: int, kernel: int, stride: int = 1) -> tuple[nn.Conv2d, nn.BatchNorm2d]:
    conv = nn.Conv2d(inputs, outputs, kernel, stride=stride, padding=kernel // 2, bias=False)
    return conv, nn.BatchNorm2d(outputs)


class Plain(nn.Module):
    """Two 3x3 to `width` channels, and the residual."""

    expansion = 1

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = _norm_conv(inputs, width, 3, stride)
        self.conv2, self.bn2 = _norm_conv(width, width, 3)
        self.relu = nn.ReLU(inplace=True)
        changes = stride != 1 or inputs != width
        self.shortcut = nn.Sequential(*_norm_conv(inputs, width, 1, stride)) if changes else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        y = self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x)))))
        y += self.shortcut(x)
        out: Tensor = self.relu(y)
        return out


class Bottleneck(nn.Module):
    """1x1 down to `width` channels, 3x3, 1x1 up to four times as many, and the residual."""

    expansion = 4

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        outputs = width * self.expansion
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


def _stage(block: type[Plain | Bottleneck], inputs: int, width: int, depth: int, stride: int) -> nn.Sequential:
    blocks = [block(inputs, width, stride)]
    blocks += [block(width * block.expansion, width, 1) for _ in range(depth - 1)]
    return nn.Sequential(*blocks)


def _resnet(block: type[Plain | Bottleneck], depths: tuple[int, int, int, int], num_classes: int) -> nn.Sequential:
    conv, norm = _norm_conv(3, 64, 7, 2)
    expansion = block.expansion
    return nn.Sequential(
        OrderedDict(
            conv1=conv,
            bn1=norm,
            relu=nn.ReLU(inplace=True),
            pool=nn.MaxPool2d(3, stride=2, padding=1),
            layer1=_stage(block, 64, 64, depths[0], 1),
            layer2=_stage(block, 64 * expansion, 128, depths[1], 2),
            layer3=_stage(block, 128 * expansion, 256, depths[2], 2),
            layer4=_stage(block, 256 * expansion, 512, depths[3], 2),
            mean=nn.AdaptiveAvgPool2d(1),
            flatten=nn.Flatten(),
            fc=nn.Linear(512 * expansion, num_classes),
        )
    )


def resnet18(num_classes: int = 1000) -> nn.Sequential:
    """A new model for images of shape (samples, 3, height, width); draws its weights from the global generator."""
    return _resnet(Plain, (2, 2, 2, 2), num_classes)


def resnet50(num_classes: int = 1000) -> nn.Sequential:
    """Like `resnet18`, of 16 bottleneck blocks."""
    return _resnet(Bottleneck, (3, 4, 6, 3), num_classes)


def resnet152(num_classes: int = 1000) -> nn.Sequential:
    """Like `resnet50`, three times as deep."""
    return _resnet(Bottleneck, (3, 8, 36, 3), num_classes)


def _preset(model: Callable[[], nn.Module], num_parameters: int) -> Preset:
    return Preset(
        model=model,
        example=image(),
        num_parameters=num_parameters,
        source="He et al. 2015, arXiv 1512.03385; 224x224x3 images, 1,000 classes, stride in the 3x3 convolution",
        loss=class_loss,
    )


PRESETS = {
    "resnet18": _preset(resnet18, 11_689_512),
    "resnet50": _preset(resnet50, 25_557_032),
    "resnet152": _preset(resnet152, 60_192_808),
}
