"""Measure boxes and masks made without downloads: ``python -m benchmarks.segmenters --pets DIR [--weights FILE]``.

The ground truth: trimaps of Oxford-IIIT Pets, DIR/test/BREED/NAME.jpg and NAME_trimap.png (255 object, 128 border,
0 background). Thresholds were chosen on DIR/trainval; this measures on DIR/test, with all breeds.
"""

import argparse
import dataclasses
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from PIL import Image
from tqdm import tqdm

from benchmarks.measurement import ResultTable
from benchmarks.results import ROOT, render, save
from localscale.lab.data.boxes import Box, bounding_box
from localscale.lab.data.generation.job import Skip
from localscale.lab.data.imagenet.annotations import find_mask_file
from localscale.lab.data.imagenet.evidence import evidence_box, load_classifier
from localscale.lab.data.imagenet.image_list import list_images
from localscale.lab.data.imagenet.onnx_sam import OnnxSamSegmenter
from localscale.lab.data.imagenet.options import ImageNetOptions
from localscale.lab.data.imagenet.registries import SEGMENTERS
from localscale.lab.data.imagenet.stages import Photograph
from localscale.lab.data.images import read_image
from localscale.lab.pages.results import render_table

PACKAGES = ("localscale", "torch", "timm", "onnxruntime", "opencv-python-headless")
BORDER, OBJECT = 128, 255
NOTHING = "nothing (the box)"
Result = TypeVar("Result")


def main() -> None:
    """Parse the command line, measure, write."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.segmenters", description=__doc__)
    parser.add_argument("--pets", type=Path, required=True, help="folder with test/BREED/NAME.jpg and NAME_trimap.png")
    parser.add_argument("--weights", type=Path, help="safetensors file of DeiT-Tiny (default: downloaded by timm)")
    parser.add_argument(
        "--encoder", type=Path, help="encoder of ONNX SAM; together with --decoder, onnx-sam is measured too"
    )
    parser.add_argument("--decoder", type=Path, help="decoder of ONNX SAM")
    parser.add_argument("--limit", type=int, help="number of images (default: all)")
    parser.add_argument("--json", type=Path, help="file to write (default: results/segmenters.json)")
    arguments = parser.parse_args()
    if (arguments.encoder is None) != (arguments.decoder is None):
        parser.error("--encoder and --decoder must be given together")
    torch.set_num_threads(1)
    tables = measure(arguments.pets, arguments.weights, arguments.encoder, arguments.decoder, arguments.limit)
    command = "python -m benchmarks.segmenters --pets DIR --weights FILE"
    command += " --encoder FILE --decoder FILE" if arguments.encoder else ""
    command += f" --limit {arguments.limit}" if arguments.limit else ""
    target = arguments.json or ROOT / "results" / "segmenters.json"
    save(target, tables, command=command, device="cpu", packages=PACKAGES)
    if arguments.json is None:
        render()
    print("\n\n".join(render_table(dataclasses.asdict(table)) for table in tables))


def measure(
    pets: Path, weights: Path | None, encoder: Path | None, decoder: Path | None, limit: int | None
) -> list[ResultTable]:
    """Return two tables: evidence boxes, and masks of every offline segmenter from true and evidence boxes."""
    folder = pets / "test"
    options = ImageNetOptions(images=folder, sam_encoder=encoder, sam_decoder=decoder)
    names = [name for name in list_images(folder).names if find_mask_file(folder, name)][:limit]
    classifier = load_classifier("deit_tiny_patch16_224", weights)
    segmenters: dict[str, Callable[..., Any]] = {NOTHING: _fill_box, "grabcut": SEGMENTERS["grabcut"](options)}
    if encoder is not None:
        segmenters["onnx-sam"] = SEGMENTERS["onnx-sam"](options)
    boxes: dict[str, list[float]] = {"evidence": [], "whole image": [], "seconds": []}
    scores = {(name, source): list[float]() for name in segmenters for source in ("true", "evidence")}
    seconds = {name: list[float]() for name in segmenters}
    for name in tqdm(names, desc="segmenters", unit="image", leave=False):
        photograph = _read(folder, name)
        trimap = np.asarray(Image.open(str(find_mask_file(folder, name)), formats=["PNG"]).convert("L"))
        true = bounding_box(trimap >= BORDER)
        spent, box = _timed(partial(evidence_box, classifier, photograph.pixels))
        whole = Box(0, 0, photograph.width, photograph.height)
        box = box or whole
        boxes["evidence"].append(box.overlap(true))
        boxes["whole image"].append(whole.overlap(true))
        boxes["seconds"].append(spent)
        for segmenter, segment in segmenters.items():
            shared = 0.0
            if isinstance(segment, OnnxSamSegmenter):  # the encoder runs once for both boxes
                shared, embeddings = _timed(partial(segment.embed, photograph))
                segment = partial(segment.cut, embeddings=embeddings)
            for source, prompt in (("true", true), ("evidence", box)):
                spent, mask = _timed(partial(segment, photograph, prompt))
                scores[segmenter, source].append(0.0 if isinstance(mask, Skip) else overlap(mask, trimap))
                seconds[segmenter].append(shared + spent)
    return [_box_table(boxes), _mask_table(scores, seconds, len(names))]


def overlap(mask: np.ndarray, trimap: np.ndarray) -> float:
    """Return the intersection over union with the object, without the trimap's border."""
    counted = trimap != BORDER
    found, true = mask & counted, trimap == OBJECT
    return float((found & true).sum() / max((found | true).sum(), 1))


def _box_table(boxes: dict[str, list[float]]) -> ResultTable:
    rows = [
        {
            "box": name,
            "mean IoU with the true box": round(float(np.mean(boxes[name])), 3),
            "IoU at least 0.5": f"{np.mean(np.array(boxes[name]) >= 0.5):.1%}",
            "seconds per image": round(float(np.median(boxes["seconds"])), 3) if name == "evidence" else 0.0,
        }
        for name in ("evidence", "whole image")
    ]
    note = f"{len(boxes['evidence'])} test images of Oxford-IIIT Pets, 256×256, DeiT-Tiny's likeliest class."
    return ResultTable("Boxes from a classifier's own evidence", note, rows)


def _mask_table(scores: dict[tuple[str, str], list[float]], seconds: dict[str, list[float]], count: int) -> ResultTable:
    rows = [
        {
            "segmenter": name,
            "mean IoU, true box": round(float(np.mean(scores[name, "true"])), 3),
            "mean IoU, evidence box": round(float(np.mean(scores[name, "evidence"])), 3),
            "median IoU, evidence box": round(float(np.median(scores[name, "evidence"])), 3),
            "seconds per image": round(float(np.median(spent)), 3),
        }
        for name, spent in seconds.items()
    ]
    note = f"{count} test images; the trimap's border is not counted; no mask counts as 0; one core, median time."
    return ResultTable("Masks without a download", note, rows)


def _read(folder: Path, name: str) -> Photograph:
    image = read_image(folder / name)
    return Photograph(name, np.array(image), image.size, name.partition("/")[0])


def _fill_box(photograph: Photograph, box: Box) -> np.ndarray:
    mask = np.zeros((photograph.height, photograph.width), bool)
    mask[round(box.top) : round(box.bottom), round(box.left) : round(box.right)] = True
    return mask


def _timed(call: Callable[[], Result]) -> tuple[float, Result]:
    start = time.perf_counter()
    result = call()
    return time.perf_counter() - start, result


if __name__ == "__main__":
    main()
