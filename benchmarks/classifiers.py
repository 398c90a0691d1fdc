"""Four ImageNet classifiers from files of weights, and files that keep eight bits per weight.

``python -m benchmarks.classifiers resnet50.safetensors resnet50_int8.safetensors`` rounds the weights of a file.
"""

import argparse
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import timm
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from localscale.errors import CheckpointError, DataError
from localscale.lab.backbones.catalogue import Normalise

SCALE = ".scale"  # added to a weight's name: what its integers are multiplied by, for each output channel
TRAINED = "base."  # before the names of a run's tensors
IMAGENET = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
HALVES = ((0.5, 0.5, 0.5), (0.5, 0.5, 0.5))


@dataclass(frozen=True)
class Classifier:
    """An ImageNet classifier at 224 px: its name in timm and the preprocessing of its weights.

    ``strides_first`` says that the first convolution of a bottleneck halves the image, not the second.
    """

    title: str
    timm_name: str
    normalise: Normalise
    crop: float
    strides_first: bool = False


# By the start of the name of the file with the weights.
CLASSIFIERS = {
    "deit_tiny": Classifier("DeiT-Tiny", "deit_tiny_patch16_224", Normalise(*IMAGENET), 0.875),
    "vit_tiny": Classifier("ViT-Tiny", "vit_tiny_patch16_224", Normalise(*HALVES), 0.9),
    "efficientnet_lite0": Classifier("EfficientNet-Lite0", "tf_efficientnet_lite0", Normalise(*HALVES), 0.875),
    "resnet50": Classifier("ResNet-50", "resnet50", Normalise(*IMAGENET), 0.875, strides_first=True),
}


def title_of(weights: Path) -> str:
    """Return what to call a file of weights, or a run's folder such as runs/imagenet-scaled/deit_tiny-base_plus/seed0.

    >>> title_of(Path("weights/deit_tiny.safetensors"))
    'deit_tiny'
    """
    return f"{weights.parent.name}/{weights.name}" if weights.is_dir() else weights.stem


def find_classifier(weights: Path) -> Classifier:
    """Return the classifier that a file of weights or a run's folder is for, by its name."""
    title = title_of(weights)
    for name, classifier in CLASSIFIERS.items():
        if title.startswith(name):
            return classifier
    raise DataError(f"{title} names no classifier; expected a name that starts with {_or(CLASSIFIERS)}")


def load_classifier(weights: Path) -> nn.Module:
    """Return the classifier of a file of weights, or of a run's folder, in evaluation mode and float32."""
    classifier = find_classifier(weights)
    model = timm.create_model(classifier.timm_name)
    if classifier.strides_first:
        for layer in (model.layer2, model.layer3, model.layer4):
            layer[0].conv1.stride, layer[0].conv2.stride = (2, 2), (1, 1)
    file = weights / "weights.safetensors" if weights.is_dir() else weights
    if not file.is_file():
        raise CheckpointError(f"no weights at {file}; name safetensors files or runs' folders with --weights")
    tensors = restore_weights(load_file(file))
    if weights.is_dir():
        tensors = {name.removeprefix(TRAINED): tensor for name, tensor in tensors.items()}
    try:
        model.load_state_dict(tensors)
    except RuntimeError as error:
        raise CheckpointError(f"{weights} does not fit timm's {classifier.timm_name}: {error}") from error
    return model.eval().to(memory_format=torch.channels_last)  # convolutions take half the time on a CPU


def round_weights(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors with eight bits per number in matrices and kernels, and a scale for each output channel."""
    rounded: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        if tensor.dim() < 2 or not tensor.is_floating_point():
            rounded[name] = tensor
            continue
        scale = (tensor.float().flatten(1).abs().amax(dim=1) / 127).clamp_min(1e-12)
        rounded[name] = (tensor.float() / _as_factor(scale, tensor)).round().to(torch.int8)
        rounded[name + SCALE] = scale
    return rounded


def restore_weights(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors of a file in float32; those that ``round_weights`` rounded are multiplied by their scale.

    >>> weights = {"fc.weight": torch.tensor([[1.0, -127.0], [0.5, 0.25]]), "fc.bias": torch.zeros(2)}
    >>> restore_weights(round_weights(weights))["fc.weight"].round(decimals=3)
    tensor([[   1.0000, -127.0000],
            [   0.5000,    0.2520]])
    """
    restored: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        if name + SCALE in tensors:
            restored[name] = tensor.float() * _as_factor(tensors[name + SCALE], tensor)
        elif not name.endswith(SCALE):
            restored[name] = tensor.float() if tensor.is_floating_point() else tensor
    return restored


def _as_factor(scale: Tensor, tensor: Tensor) -> Tensor:
    return scale.reshape(-1, *(1,) * (tensor.dim() - 1))


def _or(names: Iterable[str]) -> str:
    *most, last = names
    return f"{', '.join(most)} or {last}"


def main() -> None:
    """Write a file with eight bits per weight."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.classifiers", description=__doc__)
    parser.add_argument("source", type=Path, help="safetensors file to read")
    parser.add_argument("target", type=Path, help="safetensors file to write")
    given = parser.parse_args()
    save_file({name: x.contiguous() for name, x in round_weights(load_file(given.source)).items()}, given.target)
    print(f"{given.target}: {given.target.stat().st_size / 2**20:.1f} MiB")


if __name__ == "__main__":
    main()
