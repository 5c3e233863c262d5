"""AlexNet on one device: five convolutions and three linear layers.

61,100,840 parameters, 96 % of them in the linear layers; 0.71 G multiply-adds per image of 224x224x3 in forward.

Source: Krizhevsky: One weird trick for parallelizing convolutional neural networks (2014, arXiv 1404.5997, footnote 1),
the one-column form of Krizhevsky, Sutskever, Hinton 2012. Differs from the papers: 256 channels in the fourth
convolution, as most later implementations have, and no normalisation of responses.
"""

from __future__ import annotations

from collections import OrderedDict

from torch import nn

from geartrain.models.preset import Preset, class_loss, image


def alexnet(num_classes: int = 1000) -> nn.Sequential:
    """A new model for images (samples, 3, 224, 224); draws its weights from the global generator."""
    features = nn.Sequential(
        *_conv(3, 64, 11, stride=4, padding=2),
        nn.MaxPool2d(3, stride=2),
        *_conv(64, 192, 5, padding=2),
        nn.MaxPool2d(3, stride=2),
        *_conv(192, 384, 3, padding=1),
        *_conv(384, 256, 3, padding=1),
        *_conv(256, 256, 3, padding=1),
        nn.MaxPool2d(3, stride=2),
    )
    return nn.Sequential(
        OrderedDict(
            features=features, pool=nn.AdaptiveAvgPool2d(6), flatten=nn.Flatten(), classifier=_classifier(num_classes)
        )
    )


def _conv(inputs: int, outputs: int, kernel: int, stride: int = 1, padding: int = 0) -> tuple[nn.Module, nn.Module]:
    return nn.Conv2d(inputs, outputs, kernel, stride=stride, padding=padding), nn.ReLU(inplace=True)


def _classifier(num_classes: int) -> nn.Sequential:
    first = (nn.Dropout(0.5), nn.Linear(256 * 6 * 6, 4096), nn.ReLU(inplace=True))
    second = (nn.Dropout(0.5), nn.Linear(4096, 4096), nn.ReLU(inplace=True))
    return nn.Sequential(*first, *second, nn.Linear(4096, num_classes))


PRESETS = {
    "alexnet": Preset(
        model=alexnet,
        example=image(),
        num_parameters=61_100_840,
        source="Krizhevsky 2014, arXiv 1404.5997; one column, 224x224x3 images, 1,000 classes",
        loss=class_loss,
    ),
}
