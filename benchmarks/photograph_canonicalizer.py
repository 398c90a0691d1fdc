"""Train the canonicalizer of ls.adapt(base, "photographs"), and measure it on photographs with boxes.

python -m benchmarks.photograph_canonicalizer train --data TRAIN --boxes CSV --trunk FILE --out FOLDER
python -m benchmarks.photograph_canonicalizer score --data VAL --boxes CSV
python -m benchmarks.photograph_canonicalizer speed --device cuda

TRAIN holds photographs in folders, CSV the columns image,left,top,right,bottom in fractions of the photograph named
image, FILE timm's weights of tf_efficientnet_lite0. FOLDER gets photographs.json and photographs.safetensors; copied to
src/localscale/canonicalizer, they are what the package ships.
"""

import argparse
import functools
from collections.abc import Callable
from pathlib import Path

import timm
import torch
from safetensors.torch import load_file

import localscale as ls
from benchmarks.measurement import median_milliseconds
from benchmarks.photograph_data import Photographs, read_boxes, read_cutouts, read_pets, read_photographs
from benchmarks.photograph_training import NAME, Settings, build, score, train, write
from benchmarks.photograph_trunk import read_weights
from localscale.canonicalizer.shipped import HERE
from localscale.canonicalizer.trunks import shrink_look
from localscale.conventions import resize
from localscale.errors import LocalScaleError

QUEUE = 5  # calls between two synchronisations


def main(arguments: list[str] | None = None) -> None:
    """Parse the command line and take one step."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.photograph_canonicalizer",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    steps = parser.add_subparsers(dest="step", required=True)
    learn = steps.add_parser("train", help="train, write the files of the package, and print the scores")
    learn.add_argument("--data", type=Path, required=True, help="folder of photographs")
    learn.add_argument("--boxes", type=Path, required=True, help="CSV file of their boxes")
    learn.add_argument("--val", type=Path, help="held-out photographs (default: every tenth of --data)")
    learn.add_argument("--pets", type=Path, help="photographs with trimaps, of Oxford-IIIT Pets (default: none)")
    learn.add_argument(
        "--cutouts", type=Path, help="cut-out things, WebP with alpha, and b_*.webp to paste them on (default: none)"
    )
    learn.add_argument("--trunk", type=Path, required=True, help="safetensors file of tf_efficientnet_lite0")
    learn.add_argument("--out", type=Path, required=True, help="folder to write to")
    learn.add_argument("--steps", type=int, default=Settings.steps, help="optimizer steps (default: %(default)s)")
    learn.add_argument("--real", type=int, default=Settings.real, help="crops in a batch (default: %(default)s)")
    learn.add_argument("--pasted", type=int, default=Settings.pasted, help="pasted scenes in it (default: %(default)s)")
    learn.add_argument(
        "--empty", type=int, default=Settings.empty, help="images of nothing in it (default: %(default)s)"
    )
    learn.add_argument("--seed", type=int, default=0, help="random seed (default: %(default)s)")
    measure = steps.add_parser("score", help="print the scores of trained weights")
    measure.add_argument("--data", type=Path, required=True, help="folder of photographs")
    measure.add_argument("--boxes", type=Path, required=True, help="CSV file of their boxes")
    measure.add_argument("--weights", type=Path, default=HERE, help="folder that train wrote (default: the package)")
    speed = steps.add_parser("speed", help="print what the canonicalizer costs before a backbone, in half precision")
    speed.add_argument("--backbone", default="vit_base_patch16_224", help="any model of timm (default: %(default)s)")
    speed.add_argument("--batch", type=int, default=128, help="images (default: %(default)s)")
    speed.add_argument("--repeats", type=int, default=30, help="timed calls (default: %(default)s)")
    for each in (learn, measure, speed):
        each.add_argument("--device", default="cpu", help="cpu or cuda (default: %(default)s)")
    given = parser.parse_args(arguments)
    try:
        {"train": _train, "score": _score, "speed": _speed}[given.step](given)
    except LocalScaleError as error:
        parser.exit(1, f"error: {error}\n")


def _train(given: argparse.Namespace) -> None:
    torch.manual_seed(given.seed)
    boxes = read_boxes(given.boxes)
    photographs = read_photographs(given.data, boxes)
    if given.val is None:
        every = torch.arange(len(photographs))
        held_out, photographs = photographs.at(every[::10]), photographs.at(every[every % 10 > 0])
    else:
        held_out = read_photographs(given.val, boxes)
    if given.pets is not None:
        photographs = photographs + read_pets(given.pets)
    scenes = None
    if given.cutouts is not None:
        backgrounds, cutouts = read_cutouts(given.cutouts, boxes)
        print(f"{len(backgrounds or ())} backgrounds, {len(cutouts)} cut-out things")
        scenes = (backgrounds or photographs).to(given.device), cutouts.to(given.device)
    print(f"{len(photographs)} photographs to learn from, {len(held_out)} to measure", flush=True)
    settings = Settings(steps=given.steps, real=given.real, pasted=given.pasted, empty=given.empty)
    estimator = build(given.device)
    state = {name: tensor.to(given.device) for name, tensor in read_weights(given.trunk).items()}
    train(estimator, state, photographs.to(given.device), scenes, settings, lambda line: print(line, flush=True))
    paths = write(estimator, given.out)
    for path in paths:
        print(f"wrote {path} ({path.stat().st_size:,} bytes)")
    _print_scores(given, given.out, held_out)


def _score(given: argparse.Namespace) -> None:
    _print_scores(given, given.weights, read_photographs(given.data, read_boxes(given.boxes)))


@torch.no_grad()
def _speed(given: argparse.Namespace) -> None:
    """Print the times of the base model, of its parts in front, and of all together, on images of noise."""
    base = timm.create_model(given.backbone).eval().to(given.device, torch.bfloat16)
    model = ls.adapt(base, "photographs").eval()
    canonicalizer = model.size_canonicalizer()
    trunk, side = canonicalizer.network.trunk, canonicalizer.network.settings.resolution_for(3)
    assert model.source_size is not None
    shapes: dict[str, tuple[int, int]] = {
        "large": model.source_size,
        "small": model.input_size[1:],
        "look": (side, side),
    }
    images = {
        name: torch.randn(given.batch, 3, *size, device=given.device, dtype=torch.bfloat16)
        for name, size in shapes.items()
    }
    m = canonicalizer(images["large"]).map
    parts: dict[str, Callable[[], object]] = {
        "base model, small images": lambda: model.base(images["small"]),
        "look": lambda: shrink_look(images["large"], (side, side), torch.float16),
        "trunk and head": lambda: trunk(images["look"].half()),
        "canonicalizer": lambda: canonicalizer(images["large"]),
        "canonicalizer, small images": lambda: canonicalizer(images["small"]),
        "resizing large images": lambda: resize(images["large"], *shapes["small"]),
        "canonical form of large images": lambda: ls.unscale(images["large"], m, size=shapes["small"]),
        "adapted model, large images": lambda: model(images["large"]),
        "adapted model, small images": lambda: model(images["small"]),
    }
    for name, call in parts.items():
        several = functools.partial(_repeat, call)  # the host launches a call while the device works on another
        print(
            f"{median_milliseconds(several, given.device, repeats=given.repeats) / QUEUE:9.3f} ms  {name}", flush=True
        )


def _repeat(call: Callable[[], object]) -> None:
    for _ in range(QUEUE):
        call()


def _print_scores(given: argparse.Namespace, folder: Path, photographs: Photographs) -> None:
    """Print the scores of the weights in ``folder``, as they are in half precision."""
    estimator = build(given.device)
    estimator.load_state_dict(estimator.state_dict() | load_file(folder / f"{NAME}.safetensors"))
    for group, scores in score(estimator, photographs.to(given.device)).items():
        print(f"{group}: {scores}", flush=True)


if __name__ == "__main__":
    main()
