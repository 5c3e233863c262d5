"""VGG-16 (configuration D): thirteen convolutions of 3x3 and three linear layers, biases, no normalisation.

138,357,544 parameters; 15.5 G multiply-adds per image of 224x224x3 in forward.

Source: Simonyan, Zisserman: Very deep convolutional networks for large-scale image recognition (2014, arXiv 1409.1556,
table 1, column D; 138 million in table 2).
"""

from __future__ import annotations

from collections import OrderedDict

from torch import nn

from geartrain.models.preset import Preset, class_loss, image

_STAGES = ((2, 64), (2, 128), (3, 256), (3, 512), (3, 512))  # convolutions, channels; then half the size


def vgg16(num_classes: int = 1000) -> nn.Sequential:
    """A new model for images (samples, 3, 224, 224); draws its weights from the global generator."""
    features: list[nn.Module] = []
    channels = 3
    for depth, width in _STAGES:
        for _ in range(depth):
            features += [nn.Conv2d(channels, width, 3, padding=1), nn.ReLU(inplace=True)]
            channels = width
        features.append(nn.MaxPool2d(2))
    first = (nn.Linear(channels * 7 * 7, 4096), nn.ReLU(inplace=True), nn.Dropout(0.5))
    second = (nn.Linear(4096, 4096), nn.ReLU(inplace=True), nn.Dropout(0.5))
    classifier = nn.Sequential(*first, *second, nn.Linear(4096, num_classes))
    return nn.Sequential(OrderedDict(features=nn.Sequential(*features), flatten=nn.Flatten(), classifier=classifier))


PRESETS = {
    "vgg16": Preset(
        model=vgg16,
        example=image(),
        num_parameters=138_357_544,
        source="Simonyan, Zisserman 2014, arXiv 1409.1556, table 1 (D); 224x224x3 images, 1,000 classes",
        loss=class_loss,
    ),
}
