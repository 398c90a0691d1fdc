"""Measure and write results: ``python -m benchmarks [--suite core|data|training] [--device cuda] [--quick]``.

Prints a table per measurement, writes them as JSON, and renders every ``results/*.json`` into ``docs/results.md``.
"""

import argparse
import dataclasses
import sys
from pathlib import Path

import torch
from tqdm import tqdm

from benchmarks import core, data, training
from benchmarks.results import ROOT, render, save
from localscale.results import render_table

SUITES = {"core": core, "data": data, "training": training}


def main() -> None:
    """Parse the command line, measure, write."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--suite", choices=SUITES, default="core", help="what to measure (%(default)s)")
    parser.add_argument("--device", default="cpu", help="cpu or cuda (%(default)s)")
    parser.add_argument("--json", type=Path, help="file to write (results/SUITE_DEVICE.json)")
    parser.add_argument(
        "--quick", action="store_true", help="small sizes: shows that it runs, measures nothing worth keeping"
    )
    parser.add_argument("--render", action="store_true", help="measure nothing, only render results/*.json")
    arguments = parser.parse_args()
    if arguments.render:
        render()
        return
    if arguments.device.startswith("cuda") and not torch.cuda.is_available():
        raise SystemExit(f"--device {arguments.device}: this PyTorch sees no CUDA device; use --device cpu")
    target = arguments.json or ROOT / "results" / f"{arguments.suite}_{arguments.device}.json"
    suite, tables = SUITES[arguments.suite], []
    for measurement in tqdm(suite.MEASUREMENTS, desc="measuring", unit="table", leave=False):
        tables.append(measurement(arguments.device, arguments.quick))
        tqdm.write(render_table(dataclasses.asdict(tables[-1])) + "\n", file=sys.stdout)
    chosen = f"{f' --suite {arguments.suite}' if arguments.suite != 'core' else ''} --device {arguments.device}"
    command = f"python -m benchmarks{chosen}{' --quick' if arguments.quick else ''}"
    save(target, tables, command=command, device=arguments.device, packages=suite.PACKAGES)
    if arguments.json is None:
        render()


if __name__ == "__main__":
    main()
