"""EfficientNet-Lite0 as a PyTorch module, for the published weights.

Mingxing Tan and Quoc V. Le, "EfficientNet: Rethinking Model Scaling for Convolutional Neural Networks", ICML 2019; the
Lite variant has ReLU6 and no squeeze-and-excitation. TensorFlow trained it: hence the padding, and the epsilon of the
batch norms.
"""

import re
from dataclasses import dataclass
from pathlib import Path

import torch

IMAGE_SIZE = 224
NUM_CLASSES = 1000
_STEM_CHANNELS, _HEAD_CHANNELS = 32, 1280
_BATCH_NORM_EPS = 1e-3
# Pixels 0 to 255 -> about -1 to 1, as in training.
_PIXEL_MEAN, _PIXEL_SCALE = 127.0, 128.0


@dataclass(frozen=True)
class _Stage:
    repeats: int
    kernel: int
    stride: int
    expansion: int
    channels: int


_STAGES = (
    _Stage(1, 3, 1, 1, 16),
    _Stage(2, 3, 2, 6, 24),
    _Stage(2, 5, 2, 6, 40),
    _Stage(3, 3, 2, 6, 80),
    _Stage(3, 5, 1, 6, 112),
    _Stage(4, 5, 2, 6, 192),
    _Stage(1, 3, 1, 6, 320),
)


class SameConv(torch.nn.Conv2d):
    """A convolution with TensorFlow's "same" padding: an odd pixel goes to the right and the bottom."""

    def __init__(self, inputs: int, outputs: int, kernel: int, stride: int = 1, groups: int = 1) -> None:
        super().__init__(inputs, outputs, kernel, stride, groups=groups, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        padding = []
        for size in (x.shape[3], x.shape[2]):  # torch pads the last axis first
            out = -(-size // self.stride[0])
            total = max((out - 1) * self.stride[0] + self.kernel_size[0] - size, 0)
            padding += [total // 2, total - total // 2]
        return super().forward(torch.nn.functional.pad(x, padding) if any(padding) else x)


class Block(torch.nn.Module):
    """Expand (1x1), filter each channel, project (1x1); added to the input where the shapes are equal."""

    def __init__(self, inputs: int, outputs: int, kernel: int, stride: int, expansion: int) -> None:
        super().__init__()
        wide = inputs * expansion
        self.expand_conv = SameConv(inputs, wide, 1) if expansion > 1 else None
        self.bn0 = torch.nn.BatchNorm2d(wide, eps=_BATCH_NORM_EPS) if expansion > 1 else None
        self.depthwise_conv = SameConv(wide, wide, kernel, stride, groups=wide)
        self.bn1 = torch.nn.BatchNorm2d(wide, eps=_BATCH_NORM_EPS)
        self.project_conv = SameConv(wide, outputs, 1)
        self.bn2 = torch.nn.BatchNorm2d(outputs, eps=_BATCH_NORM_EPS)
        self.is_residual = stride == 1 and inputs == outputs

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x
        if self.expand_conv is not None and self.bn0 is not None:
            y = torch.nn.functional.relu6(self.bn0(self.expand_conv(y)))
        y = torch.nn.functional.relu6(self.bn1(self.depthwise_conv(y)))
        y = self.bn2(self.project_conv(y))
        added: torch.Tensor = x + y if self.is_residual else y
        return added


class EfficientNetLite0(torch.nn.Module):
    """image UINT8 [rows, 224, 224, 3] (red, green, blue) -> logits FP32 [rows, 1000] of ImageNet's classes."""

    def __init__(self) -> None:
        super().__init__()
        self.conv_stem = SameConv(3, _STEM_CHANNELS, 3, stride=2)
        self.bn0 = torch.nn.BatchNorm2d(_STEM_CHANNELS, eps=_BATCH_NORM_EPS)
        blocks, channels = [], _STEM_CHANNELS
        for stage in _STAGES:
            for index in range(stage.repeats):
                stride = stage.stride if index == 0 else 1
                blocks.append(Block(channels, stage.channels, stage.kernel, stride, stage.expansion))
                channels = stage.channels
        self.blocks = torch.nn.ModuleList(blocks)
        self.conv_head = SameConv(channels, _HEAD_CHANNELS, 1)
        self.bn1 = torch.nn.BatchNorm2d(_HEAD_CHANNELS, eps=_BATCH_NORM_EPS)
        self.fc = torch.nn.Linear(_HEAD_CHANNELS, NUM_CLASSES)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        x = (image.to(torch.float32) - _PIXEL_MEAN) / _PIXEL_SCALE
        x = torch.nn.functional.relu6(self.bn0(self.conv_stem(x.permute(0, 3, 1, 2))))
        for block in self.blocks:
            x = block(x)
        x = torch.nn.functional.relu6(self.bn1(self.conv_head(x)))
        logits: torch.Tensor = self.fc(x.mean(dim=(2, 3)))
        return logits


def load(weights: Path) -> EfficientNetLite0:
    """The module with the published weights (a file of tensors; nothing in it is executed)."""
    state = torch.load(weights, map_location="cpu", weights_only=True)
    module = EfficientNetLite0()
    # The publisher's names begin with underscores.
    module.load_state_dict({re.sub(r"(^|\.)_", r"\1", name): tensor for name, tensor in state.items()})
    return module.eval()
