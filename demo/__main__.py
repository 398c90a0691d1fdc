"""Train a small model on real digits with and without canonicalizers, and compare the two.

A small backbone learns two-digit numbers whose digits each have a size of their own, with random monotone scaling as
augmentation. Two models then continue from its weights for the same number of steps on the same images: a control
without canonicalizers, and DEC, the same backbone with canonicalizers at two sites. The demo ends with a table and two
pictures. The numbers depend on the seed and on the machine.
"""

import argparse
import copy
import dataclasses
import json
import time
import warnings
from pathlib import Path

import torch
from torch import nn

import localscale as ls
from demo.digits import SIDE, Digits, make_digits
from demo.table import Row, measure, render_table
from demo.training import Budget, normalise, small_backbone, train
from localscale.errors import ConvergenceWarning
from localscale.files import write_whole

TEST_SCALES = (0.5, 0.71, 1.0, 1.41, 2.0)
# The backbone is narrow, so its canonicalizers have a quarter of the default channels and a smaller working copy.
CONFIG = ls.DECConfig(
    sites=("input", "layer2"),
    knots=(6, 4),
    network=ls.ConvNetwork(channels=(16, 32), resolution=SIDE // 2),
    solver=ls.Anderson(max_steps=8, tolerance=1e-3),
)


@dataclasses.dataclass(frozen=True)
class Plan:
    """Numbers of images and the training budgets."""

    train_count: int
    test_count: int
    variants: int
    pretraining: Budget
    tuning: Budget


FULL = Plan(4000, 1000, 4, Budget(epochs=20, learning_rate=3e-3), Budget(epochs=8, learning_rate=1e-3))
QUICK = Plan(200, 100, 2, Budget(epochs=1, learning_rate=2e-3), Budget(epochs=1, learning_rate=1e-3))


def main() -> None:
    """Parse the command line and run."""
    parser = argparse.ArgumentParser(prog="python -m demo", description=__doc__)
    parser.add_argument(
        "--out", type=Path, default=Path("out/demo"), help="folder for the results and pictures (default: %(default)s)"
    )
    parser.add_argument("--seed", type=int, default=0, help="seed of all random numbers (default: %(default)s)")
    parser.add_argument("--quick", action="store_true", help="do a hundredth of the work, only to see that it runs")
    arguments = parser.parse_args()
    try:
        run(arguments.out, arguments.seed, QUICK if arguments.quick else FULL)
    except KeyboardInterrupt:
        raise SystemExit("\nstopped; nothing was written") from None
    except ImportError as error:
        raise SystemExit(f"the demo needs the extra 'demo' ({error}): pip install 'localscale[demo]'") from error


def run(out: Path, seed: int, plan: Plan) -> list[Row]:
    """Train and measure all models, print the table, and write the results to ``out`` at the end."""
    from demo.figures import draw_accuracy_per_scale, draw_warps

    started = time.perf_counter()
    print(f"drawing {plan.train_count:,} training and {plan.test_count:,} test images of two real digits each")
    digits = make_digits(
        seed,
        train_count=plan.train_count,
        test_count=plan.test_count,
        variants=plan.variants,
        test_scales=TEST_SCALES,
    )
    rows, dec = train_all(digits, seed, plan)

    out.mkdir(parents=True, exist_ok=True)
    shown = digits.test[:8]
    with torch.no_grad():
        _, report = dec(normalise(shown), return_report=True)
        _, whole = dec(normalise(digits.test), return_report=True)
    titles = [f"{int(label):02d}" for label in digits.test_labels[:8]]
    draw_warps(out / "learned_warps.png", shown, report["input"].map, titles)
    draw_accuracy_per_scale(out / "accuracy_per_scale.png", {row.name: row.accuracy_per_scale for row in rows})
    result = {"seed": seed, "config": CONFIG.to_dict(), "plan": dataclasses.asdict(plan), "rows": list(map(vars, rows))}
    write_whole(out / "results.json", json.dumps(result, indent=2) + "\n")

    print(f"\n{render_table(rows)}\n")
    print(f"InvE is the mean squared ℓ2 distance between the softmax outputs on a test image and on {plan.variants} of")
    print("its variants with other digit sizes; lower is better. control and DEC continue from the weights of start.")
    for path, site in whole.items():
        moved = 100 * float(site.map.mean_displacement().mean())
        share = f"{100 * float(site.converged.double().mean()):.1f} %"
        print(f"site {path}: maps move points by {moved:.2f} % of the side on average; {share} of the solves converged")
    print(f"pictures: {out / 'learned_warps.png'}, {out / 'accuracy_per_scale.png'}")
    print(f"{time.perf_counter() - started:.0f} seconds in all, seed {seed}")
    return rows


def train_all(digits: Digits, seed: int, plan: Plan) -> tuple[list[Row], ls.AdaptedModel]:
    """Train the start model, the control and DEC; return their rows and the DEC model."""
    torch.manual_seed(seed)
    start = small_backbone()
    rows = []

    def train_and_measure(name: str, model: nn.Module, budget: Budget, offset: int) -> None:
        seconds = train(model, digits.train, digits.train_labels, budget, seed=seed + offset, title=f"training {name}")
        rows.append(measure(name, model, digits, seconds))

    train_and_measure("start", start, plan.pretraining, 0)
    control = copy.deepcopy(start)
    train_and_measure("control", control, plan.tuning, 1)
    dec = ls.adapt(copy.deepcopy(start), CONFIG, input_size=(1, SIDE, SIDE))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # the demo prints the share that converged at the end
        train_and_measure("DEC", dec, plan.tuning, 1)
    return rows, dec


if __name__ == "__main__":
    main()
