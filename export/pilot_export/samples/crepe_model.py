"""CREPE (tiny) as a PyTorch module, for the published weights: the pitch of 64 ms of sound.

Jong Wook Kim, Justin Salamon, Peter Li and Juan Pablo Bello, "CREPE: A Convolutional Representation for Pitch
Estimation", ICASSP 2018.
"""

import re
from pathlib import Path

import torch

SAMPLE_RATE = 16_000
FRAME_SAMPLES = 1024
NUM_BINS = 360
CENTS_PER_BIN = 20.0
_FIRST_BIN_CENTS = 1997.3794084376191
_LOWEST_HZ = 10.0  # 0 cents
_CHANNELS = (1, 128, 16, 16, 16, 32, 64)
_BATCH_NORM_EPS = 0.001
# Bins on each side of the largest that share in the average, as the authors decode it.
_REACH_BINS = 4
_SILENCE = 1e-10


class Layer(torch.nn.Module):
    """Convolution, ReLU, batch norm, half the length."""

    def __init__(self, inputs: int, outputs: int, kernel: int, stride: int, padding: tuple[int, int]) -> None:
        super().__init__()
        self.padding = padding
        self.conv = torch.nn.Conv1d(inputs, outputs, kernel, stride)
        self.norm = torch.nn.BatchNorm1d(outputs, eps=_BATCH_NORM_EPS)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.norm(torch.relu(self.conv(torch.nn.functional.pad(x, self.padding))))
        return torch.nn.functional.max_pool1d(x, 2)


class Crepe(torch.nn.Module):
    """audio FP32 [rows, 1024] -> activation FP32 [rows, 360], pitch_hz FP32 [rows, 1], confidence FP32 [rows, 1]."""

    cents: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        layers = [Layer(1, _CHANNELS[1], 512, 4, (254, 254))]
        layers += [Layer(_CHANNELS[i], _CHANNELS[i + 1], 64, 1, (31, 32)) for i in range(1, 6)]
        self.layers = torch.nn.ModuleList(layers)
        self.classifier = torch.nn.Linear(256, NUM_BINS)
        self.register_buffer("cents", CENTS_PER_BIN * torch.arange(NUM_BINS) + _FIRST_BIN_CENTS, persistent=False)

    def forward(self, audio: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        centred = audio - audio.mean(dim=1, keepdim=True)
        x = (centred / audio.std(dim=1, keepdim=True).clamp(min=_SILENCE))[:, None, :]
        for layer in self.layers:
            x = layer(x)
        activation = torch.sigmoid(self.classifier(x.permute(0, 2, 1).flatten(1)))
        confidence, best = activation.max(dim=1, keepdim=True)
        # The mean over the bins near the largest, weighted by what they say: finer than a bin.
        is_near = (self.cents - self.cents[best]).abs() <= _REACH_BINS * CENTS_PER_BIN + 0.5
        weight = activation * is_near
        cents = (weight * self.cents).sum(dim=1, keepdim=True) / weight.sum(dim=1, keepdim=True)
        return activation, _LOWEST_HZ * torch.exp2(cents / 1200.0), confidence


def load(weights: Path) -> Crepe:
    """The module with the published weights (a file of tensors; nothing in it is executed)."""
    state = torch.load(weights, map_location="cpu", weights_only=True)
    module = Crepe()
    module.load_state_dict({_our_name(name): _flat(tensor) for name, tensor in state.items()})
    return module.eval()


def _our_name(name: str) -> str:
    """conv3_BN.weight -> layers.2.norm.weight"""
    return re.sub(
        r"conv(\d)(_BN)?\.", lambda match: f"layers.{int(match[1]) - 1}.{'norm' if match[2] else 'conv'}.", name
    )


def _flat(tensor: torch.Tensor) -> torch.Tensor:
    """The publisher's convolutions are two-dimensional, with a second axis of 1."""
    return tensor.squeeze(-1) if tensor.ndim == 4 else tensor
