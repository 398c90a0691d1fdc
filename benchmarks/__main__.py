"""Measure and write results: ``python -m benchmarks [--suite SUITE] [--device cuda] [--quick]``.

Prints a table for each measurement, writes all tables as JSON, and renders ``results/*.json`` to ``docs/results.md``.
"""

import argparse
import dataclasses
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from tqdm import tqdm

from benchmarks import core, data, faults, methods, photograph_scales, photographs, speed, training
from benchmarks.measurement import ResultTable
from benchmarks.results import ROOT, render, save
from localscale.errors import near_misses
from localscale.lab.pages.results import render_table

Measurement = Callable[[str, bool], ResultTable]
SUITES: dict[str, Any] = {
    "core": core,
    "data": data,
    "training": training,
    "speed": speed,
    "photographs": photographs,
    "photograph-scales": photograph_scales,
    "faults": faults,
    "methods": methods,
}


def main() -> None:
    """Parse the command line, measure, write."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--suite", choices=SUITES, default="core", help="suite to run (default: %(default)s)")
    parser.add_argument("--device", default="cpu", help="cpu or cuda (default: %(default)s)")
    parser.add_argument(
        "--only", nargs="+", metavar="TABLE", help="measure only these tables, named by their functions"
    )
    parser.add_argument(
        "--json",
        type=Path,
        help="file to write (default: results/SUITE_DEVICE.json; results/SUITE.json for suites with options below)",
    )
    parser.add_argument(
        "--quick", action="store_true", help="use small sizes, to see that everything runs; the numbers mean nothing"
    )
    parser.add_argument("--render", action="store_true", help="only render results/*.json to docs/results.md")
    for suite in SUITES.values():
        if hasattr(suite, "add_options"):
            suite.add_options(parser)
    arguments = parser.parse_args()
    if arguments.replay:
        print(faults.replay(arguments.replay))
        return
    if arguments.only and arguments.json is None:
        parser.error(
            "--only needs --json FILE, so that the results of a part do not overwrite those of the whole suite"
        )
    if arguments.render:
        render()
        return
    if arguments.device.startswith("cuda") and not torch.cuda.is_available():
        raise SystemExit(f"--device {arguments.device}: this PyTorch sees no CUDA device; use --device cpu")
    suite = SUITES[arguments.suite]
    has_options = hasattr(suite, "add_options")
    name = arguments.suite.replace("-", "_") if has_options else f"{arguments.suite}_{arguments.device}"
    target = arguments.json or ROOT / "results" / f"{name}.json"
    offered = suite.measurements(arguments) if has_options else suite.MEASUREMENTS
    measurements = _chosen(offered, arguments.only)
    options = [f"--suite {arguments.suite}"] if arguments.suite != "core" else []
    options += suite.described(arguments) if has_options else []
    options += [f"--device {arguments.device}"] + (["--quick"] if arguments.quick else [])
    options += [f"--only {' '.join(arguments.only)}"] if arguments.only else []
    about = {"command": " ".join(["python -m benchmarks", *options]), "device": arguments.device}
    tables = []
    for measurement in tqdm(measurements, desc="measuring", unit="table", leave=False):
        table = measurement(arguments.device, arguments.quick)
        if not table.rows:  # the table is for another device
            continue
        tables.append(table)
        tqdm.write(render_table(dataclasses.asdict(table)) + "\n", file=sys.stdout)
        if arguments.json is not None:  # keeps finished tables if the run is stopped
            save(target, tables, **about, packages=suite.PACKAGES)
    save(target, tables, **about, packages=suite.PACKAGES)
    if arguments.json is None:
        render()


def _chosen(measurements: tuple[Measurement, ...], only: list[str] | None) -> list[Measurement]:
    by_name = {measurement.__name__: measurement for measurement in measurements}
    for name in only or ():
        if name not in by_name:
            raise SystemExit(f"--only {name}: {near_misses(name, by_name)}")
    return [by_name[name] for name in only or by_name]


if __name__ == "__main__":
    main()
