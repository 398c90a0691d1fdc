"""Fine-tune a timm model on canonical forms of photographs, beside an equal-budget control, and draw what it sees.

Run from the repository root: ``.venv/bin/python examples/classify_photographs.py --folder PETS --weights DEIT``
PETS holds trainval/CLASS/NAME.jpg and test/CLASS/NAME.jpg, for example Oxford-IIIT Pets. DEIT is a safetensors file of
timm's deit_tiny_patch16_224; without it the weights are random. It writes ``photographs.png``.
"""

import argparse
import copy
from pathlib import Path

import matplotlib.pyplot as plt
import timm
import torch
from PIL import Image
from torch import Tensor, nn
from torch.utils.data import DataLoader
from torchvision.transforms.functional import to_tensor

import localscale as ls

SIDE, CLASSES, EPOCHS, SHOWN, LINES = 128, 8, 5, 6, 13


def make_base(weights: Path | None) -> nn.Module:
    """Return DeiT-Tiny for small images and few classes; yours: pretrained=True alone, which downloads weights."""
    given = {} if weights is None else {"pretrained": True, "pretrained_cfg_overlay": {"file": str(weights)}}
    return timm.create_model("deit_tiny_patch16_224", img_size=SIDE, num_classes=CLASSES, **given)


def read_photographs(folder: Path, classes: list[str]) -> list[tuple[Image.Image, int]]:
    """Return the photographs of some classes and their labels; masks that lie beside them are left out."""
    paths = [(path, label) for label, name in enumerate(classes) for path in sorted((folder / name).glob("*.jpg"))]
    return [(Image.open(path, formats=["JPEG", "PNG"]).convert("RGB"), label) for path, label in paths]


@torch.no_grad()
def predict(model: ls.AdaptedModel, photograph: Image.Image) -> tuple[Tensor, ls.maps.Map]:
    """Return the probabilities of the classes for a photograph, and the map of its canonical form."""
    image = model.preprocessing.transform()(photograph)
    logits, report = model.eval()(image[None], return_report=True)
    return logits.softmax(1)[0], report["input"].map


def draw(model: ls.AdaptedModel, photographs: list[tuple[Image.Image, int]], classes: list[str]) -> None:
    """Draw photographs, the grids on which canonical forms read them, and the canonical forms at full resolution."""
    figure, axes = plt.subplots(3, len(photographs), figsize=(1.5 * len(photographs), 4.8), layout="constrained")
    even = torch.linspace(0, 1, LINES)
    lattice = torch.stack(torch.meshgrid(even, even, indexing="xy"), -1).reshape(1, -1, 2)
    for (photograph, label), column in zip(photographs, axes.T, strict=True):
        chances, m = predict(model, photograph)
        picture = to_tensor(photograph)[None]
        for axis, shown in zip(column, (picture, picture, ls.unscale(picture, m)), strict=True):
            axis.imshow(shown[0].movedim(0, 2).clamp(0, 1))
            axis.set(xticks=[], yticks=[])
        last_pixel = torch.tensor(photograph.size) - 1
        x, y = (m(lattice) * last_pixel).reshape(LINES, LINES, 2).unbind(-1)
        for lines in ((x, y), (x.T, y.T)):
            column[1].plot(*lines, color="white", linewidth=0.8)
        answer = int(chances.argmax())
        green_if_right = "#009E73" if answer == label else "#C04A00"
        column[0].set_title(classes[answer].replace("_", " "), fontsize=8, color=green_if_right)
    for axis, name in zip(axes[:, 0], ("photograph", "map", "canonical form"), strict=True):
        axis.set_ylabel(name, fontsize=9)
    figure.savefig("photographs.png", dpi=100)


def main() -> None:
    """Learn sizes, fine-tune the control and the adapted model, compare them, and answer for one photograph."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=Path, required=True, help="a folder with trainval/ and test/")
    parser.add_argument("--weights", type=Path, help="a safetensors file; default: random weights")
    given = parser.parse_args()
    if not (given.folder / "trainval").is_dir():
        parser.error(f"{given.folder} has no folder trainval; name the folder of Oxford-IIIT Pets with --folder")
    classes = sorted(path.name for path in (given.folder / "trainval").iterdir())
    classes = classes[:: len(classes) // CLASSES][:CLASSES]  # cats and dogs: the cats come first

    torch.manual_seed(0)
    control = make_base(given.weights)
    config = ls.DECConfig(knots=8, network=ls.SizeNetwork(width=16, blocks=1, resolution=SIDE // 2))
    model = ls.adapt(copy.deepcopy(control), config)
    prepare = model.preprocessing.transform()
    train, test = (read_photographs(given.folder / part, classes) for part in ("trainval", "test"))
    train_loader = DataLoader([(prepare(photograph), label) for photograph, label in train], 16, shuffle=True)
    test_loader = DataLoader([(prepare(photograph), label) for photograph, label in test], 64)
    print(ls.learn_sizes(model, train_loader, steps=300, progress=False))
    for name, one in {"control": control, "adapted": model}.items():
        torch.manual_seed(1)  # the same batches
        found = ls.fit(one, train_loader, test_loader, epochs=EPOCHS, cpu=True, progress=False).history[-1].metrics
        print(f"{name}: accuracy {100 * found['accuracy']:.1f} %, InvE {100 * found['invariance_error']:.1f}e-2")
    chances, _ = predict(model, test[0][0])
    print(f"the first photograph, {classes[0]}: {classes[int(chances.argmax())]} with {100 * chances.max():.0f} %")
    draw(model, test[:: len(test) // SHOWN][:SHOWN], classes)


if __name__ == "__main__":
    main()
