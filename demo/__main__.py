"""Train a small model on real digits with and without a canonicalizer, and compare the two.

A small backbone learns two-digit numbers whose digits each have a size of their own, with random monotone scaling as
augmentation: once by itself (the control) and once behind a canonicalizer that brings all digits to one size (the size
equilibrium). The canonicalizer first learns, without labels, how large things are. Both backbones start from the same
weights and are trained for the same steps on the same images. The demo ends with a table and two pictures. The numbers
depend on the seed and on the machine.
"""

import argparse
import copy
import dataclasses
import json
import time
from pathlib import Path

import torch

import localscale as ls
from demo.digits import SIDE, Digits, make_digits
from demo.table import Row, measure, render_table
from demo.training import Budget, normalise, small_backbone, train
from localscale.files import write_whole

TEST_SCALES = (0.5, 0.71, 1.0, 1.41, 2.0)
# The images are small, so the size network is narrow and the map has few knots.
CONFIG = ls.DECConfig(
    knots=12,
    network=ls.SizeNetwork(width=16, blocks=2, target=0.4),
    solver=ls.Picard(max_steps=4, tolerance=1e-3, fixed_steps=True),
    guard=0.05,
)


@dataclasses.dataclass(frozen=True)
class Plan:
    """Numbers of images, steps of learning sizes, and the training budget of both models."""

    train_count: int
    test_count: int
    variants: int
    size_steps: int
    training: Budget


FULL = Plan(4000, 1000, 4, 600, Budget(epochs=28, learning_rate=3e-3))
QUICK = Plan(200, 100, 2, 10, Budget(epochs=1, learning_rate=2e-3))


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
    rows, adapted = train_all(digits, seed, plan)

    out.mkdir(parents=True, exist_ok=True)
    shown = digits.test[:8]
    with torch.no_grad():
        _, report = adapted(normalise(shown), return_report=True)
        _, whole = adapted(normalise(digits.test), return_report=True)
    titles = [f"{int(label):02d}" for label in digits.test_labels[:8]]
    draw_warps(out / "learned_warps.png", shown, report["input"].map, titles)
    draw_accuracy_per_scale(out / "accuracy_per_scale.png", {row.name: row.accuracy_per_scale for row in rows})
    result = {"seed": seed, "config": CONFIG.to_dict(), "plan": dataclasses.asdict(plan), "rows": list(map(vars, rows))}
    write_whole(out / "results.json", json.dumps(result, indent=2) + "\n")

    print(f"\n{render_table(rows)}\n")
    print(f"InvE is the mean squared ℓ2 distance between the softmax outputs on a test image and on {plan.variants} of")
    print("its variants with other digit sizes; lower is better. Both models take the same training steps; the")
    print("seconds of the size equilibrium include learning the sizes.")
    for path, site in whole.items():
        moved = 100 * float(site.map.mean_displacement().mean())
        rest = float(site.residual.mean())
        print(f"site {path}: maps move points by {moved:.1f} % of the side on average; mean residual {rest:.1e}")
    print(f"pictures: {out / 'learned_warps.png'}, {out / 'accuracy_per_scale.png'}")
    print(f"{time.perf_counter() - started:.0f} seconds in all, seed {seed}")
    return rows


def train_all(digits: Digits, seed: int, plan: Plan) -> tuple[list[Row], ls.AdaptedModel]:
    """Train the control and the adapted model; return their rows and the adapted model."""
    torch.manual_seed(seed)
    control = small_backbone()
    adapted = ls.adapt(copy.deepcopy(control), CONFIG, input_size=(1, SIDE, SIDE))
    rows = []
    for name, model in (("control", control), ("size equilibrium", adapted)):
        started = time.perf_counter()
        if isinstance(model, ls.AdaptedModel):
            found = ls.learn_sizes(model, normalise(digits.train), steps=plan.size_steps)
            model.size_canonicalizer().requires_grad_(False)  # frozen while the backbone is trained
            taken = f"sizes learned without labels in {time.perf_counter() - started:.0f} s"
            print(f"{taken}: mean error {found.error:.3f} in log size on held-out images")
        train(model, digits.train, digits.train_labels, plan.training, seed=seed, title=f"training {name}")
        rows.append(measure(name, model, digits, time.perf_counter() - started))
    return rows, adapted


if __name__ == "__main__":
    main()
