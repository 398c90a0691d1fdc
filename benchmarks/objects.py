"""Time the rendering of scanned objects: ``python -m benchmarks.objects --meshes DIR --panoramas DIR [--count N]``.

The time is that of one core for choosing the scene, casting rays, shading, shadows and encoding, without the disk.
"""

import argparse
import dataclasses
import statistics
import time
from pathlib import Path

import torch
from tqdm import tqdm

from benchmarks.measurement import ResultTable
from benchmarks.results import ROOT, render, save
from localscale.lab.data.generation.job import Sample, build, run
from localscale.lab.data.objects import ObjectsOptions, objects_job
from localscale.lab.pages.results import render_table

TARGET = 0.35  # seconds per image and core, at four samples per pixel


def main() -> None:
    """Parse the command line, measure, write."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.objects", description=__doc__)
    parser.add_argument("--meshes", type=Path, required=True, help="folder of meshes (required)")
    parser.add_argument("--panoramas", type=Path, required=True, help="folder of panoramas (required)")
    parser.add_argument("--count", type=int, default=80, help="images per row (default: %(default)s)")
    parser.add_argument("--json", type=Path, help="file to write (default: results/objects.json)")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    tables = [measure(arguments.meshes, arguments.panoramas, arguments.count)]
    print(render_table(dataclasses.asdict(tables[0])))
    command = f"python -m benchmarks.objects --meshes DIR --panoramas DIR --count {arguments.count}"
    target = arguments.json or ROOT / "results" / "objects.json"
    packages = ("localscale", "embreex", "trimesh", "numpy")
    save(target, tables, command=command, device="cpu", packages=packages)
    if arguments.json is None:
        render()


def measure(meshes: Path, panoramas: Path, count: int) -> ResultTable:
    rows = [_measure(meshes, panoramas, count, samples) for samples in (1, 4, 16)]
    return ResultTable(
        title="Rendering scanned objects",
        note=(
            f"256×256, groups of four, one core; {count} images a row after one group of warm-up, meshes and panoramas "
            "loaded on first use within it. Occlusion: images in which an object hides part of the other."
        ),
        rows=rows,
    )


def _measure(meshes: Path, panoramas: Path, count: int, samples: int) -> dict[str, object]:
    job = objects_job(ObjectsOptions(meshes, panoramas, count=count + 4, samples=samples))
    steps = build(job.stages)
    run(steps, 0)
    records = []
    started, processor = time.perf_counter(), time.process_time()
    for index in tqdm(range(1, job.size), desc=f"{samples} samples per pixel", unit="scene", leave=False):
        result = run(steps, index)
        if isinstance(result, list):
            records += [sample.record for sample in result if isinstance(sample, Sample)]
    seconds, processor = time.perf_counter() - started, time.process_time() - processor
    hidden = statistics.mean(min(thing["visible"] for thing in record["objects"]) < 0.99 for record in records)
    scales = sorted(thing["scale"] for record in records for thing in record["objects"])
    verdict = f"≤ {TARGET}: {'met' if seconds / len(records) <= TARGET else 'missed'}" if samples == 4 else "–"
    return {
        "samples per pixel": samples,
        "s/image": seconds / len(records),
        "CPU s/image": processor / len(records),
        "target": verdict,
        "images": len(records),
        "with occlusion": f"{hidden:.0%}",
        "scales": f"{scales[0]:.2f} to {scales[-1]:.2f}",
    }


if __name__ == "__main__":
    main()
