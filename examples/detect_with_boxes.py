"""Adapt torchvision's Faster R-CNN, train it on images of different sizes, and map its boxes back to the images.

Run from the repository root: ``.venv/bin/python examples/detect_with_boxes.py``
It writes ``detector.png``.
"""

import copy

import matplotlib.pyplot as plt
import torch
from matplotlib.patches import Rectangle
from torch import Tensor, nn
from torchvision.models.detection import FasterRCNN
from torchvision.models.detection.anchor_utils import AnchorGenerator
from torchvision.ops import MultiScaleRoIAlign, box_iou

import localscale as ls

STEPS, BATCH, TEST = 80, 4, 24


def make_base() -> nn.Module:
    """Return a small Faster R-CNN with random weights; yours: fasterrcnn_resnet50_fpn(weights="DEFAULT")."""
    layers: list[nn.Module] = []
    for before, after in ((3, 16), (16, 32), (32, 48)):
        layers += [nn.Conv2d(before, after, 3, stride=2, padding=1), nn.GroupNorm(4, after), nn.ReLU()]
    backbone = nn.Sequential(*layers, nn.Conv2d(48, 48, 3, padding=1), nn.ReLU())
    backbone.out_channels = 48  # type: ignore[assignment]
    anchors = AnchorGenerator(sizes=((10, 20, 40),), aspect_ratios=((1.0,),))
    pool = MultiScaleRoIAlign(["0"], output_size=5, sampling_ratio=2)
    few = {"rpn_post_nms_top_n_train": 50, "rpn_post_nms_top_n_test": 20, "box_detections_per_img": 2}
    return FasterRCNN(backbone, 2, rpn_anchor_generator=anchors, box_roi_pool=pool, min_size=80, max_size=120, **few)


def draw_image() -> tuple[Tensor, dict[str, Tensor]]:
    """Return an image of random size with two discs of different sizes, and their boxes in pixels."""
    height, width = (int(side) for side in torch.randint(64, 97, (2,)))
    x, y = torch.arange(width) + 0.5, torch.arange(height)[:, None] + 0.5
    image, boxes = 0.1 * torch.randn(3, height, width) + 0.4, []
    for half in (0, 1):
        radius = float(torch.empty(()).uniform_(5, 15))
        cx = half * width / 2 + radius + float(torch.rand(())) * (width / 2 - 2 * radius)
        cy = radius + float(torch.rand(())) * (height - 2 * radius)
        disc = (x - cx).square() + (y - cy).square() < radius**2
        image[:, disc] += 0.5 * torch.rand(3, 1)
        boxes.append([cx - radius, cy - radius, cx + radius, cy + radius])
    return image, {"boxes": torch.tensor(boxes), "labels": torch.ones(2, dtype=torch.long)}


def train(model: nn.Module) -> None:
    """Train on new images in every step; in training a detector takes targets and returns losses."""
    torch.manual_seed(1)
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-3)
    for _ in range(STEPS):
        images, targets = zip(*(draw_image() for _ in range(BATCH)), strict=True)
        sum(model.train()(list(images), list(targets)).values()).backward()
        optimizer.step()
        optimizer.zero_grad()


def main() -> None:
    """Train the control and the adapted detector, compare their boxes, and draw some."""
    torch.manual_seed(0)
    control = make_base()
    config = ls.DECConfig(mode="equivariant", knots=8, network=ls.SizeNetwork(width=16, blocks=1, resolution=64))
    model = ls.adapt(copy.deepcopy(control), config, input_size=(3, 80, 80))
    print(ls.learn_sizes(model, [draw_image()[0] for _ in range(128)], steps=100, batch_size=16, progress=False))
    model.size_canonicalizer().requires_grad_(False)
    torch.manual_seed(2)
    images, targets = zip(*(draw_image() for _ in range(TEST)), strict=True)
    for name, one in (("control", control), ("adapted", model)):
        train(one)
        with torch.no_grad():
            found = one.eval()(list(images))
        best = [box_iou(t["boxes"], f["boxes"]).amax(1) for t, f in zip(targets, found, strict=True) if len(f["boxes"])]
        print(f"{name}: mean IoU of the {2 * TEST} things {sum(float(iou.sum()) for iou in best) / (2 * TEST):.2f}")

    with torch.no_grad():
        found, report = model(list(images[:4]), return_report=True)
    figure, axes = plt.subplots(2, 4, figsize=(8, 4), layout="constrained")
    for index, (above, below) in enumerate(axes.T):
        m, size = report["input"].map[index], tuple(images[index].shape[1:])
        boxes = found[index]["boxes"]
        canonical = ls.unscale(images[index][None], m)[0]
        for axis, picture, shown in ((above, images[index], boxes), (below, canonical, None)):
            axis.imshow(picture.movedim(0, 2).clamp(0, 1))
            axis.set(xticks=[], yticks=[])
            for left, top, right, bottom in ls.scale_boxes(boxes, m.inverse(), size=size) if shown is None else shown:
                edges = (left - 0.5, top - 0.5), right - left, bottom - top  # imshow centres column 0 at 0
                axis.add_patch(Rectangle(*edges, fill=False, color="tab:red"))
    figure.savefig("detector.png", dpi=100)


if __name__ == "__main__":
    main()
