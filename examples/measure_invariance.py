"""How much do a model's answers move when parts of an image change size?  python examples/measure_invariance.py

Locally scaled MNIST is drawn in batches on the model's own device; no files, no workers.
"""

import timm
import torch

import localscale as ls


def main() -> None:
    """Draw, answer, compare."""
    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = timm.create_model("resnet10t", num_classes=1000, in_chans=1).eval().to(device)  # untrained: bring your own

    # Real digits: MNIST's where torchvision has them, else the few thousand that come with the extra "data".
    dataset = ls.data.LocallyScaledMNIST(train=False, count=64)
    draw = dataset.renderer(device)
    index = torch.arange(len(dataset))
    images, labels = draw(index)
    print(f"{len(dataset)} images of three digits ({dataset.digits.source}), {tuple(images.shape[1:])}")

    with torch.inference_mode():
        answers = model(images).softmax(-1)
        variants = torch.stack([model(draw(index, variant)[0]).softmax(-1) for variant in (1, 2, 3)], dim=1)
    error = ls.metrics.invariance_error(answers, variants)
    print(f"InvE (squared) over 3 variants of each image: {100 * float(error):.4f} · 10⁻²")

    # The brackets of the paper's per-scale table: the same digits in the same places, at other sizes.
    for bracket in ((0.4, 1.0), (1.0, 2.0), (2.0, 3.0)):
        scaled = ls.data.LocallyScaledMNIST(count=64, factors=bracket, digits=dataset.digits, train=False)
        images, labels = scaled.renderer(device)(index)
        with torch.inference_mode():
            correct = (model(images).argmax(-1) == labels).float().mean()
        print(f"digits at {bracket[0]} to {bracket[1]} times their size: {100 * float(correct):.1f} % correct")


if __name__ == "__main__":
    main()
