"""The job that writes locally scaled objects."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import partial
from typing import Any

import numpy as np

from localscale.errors import ConfigError, near_misses
from localscale.lab.data.generation import Job, Sample, Skip, Stage
from localscale.lab.data.images import encode_image, encode_mask
from localscale.lab.data.objects.catalog import Entry, checksum, read_meshes, read_panoramas
from localscale.lab.data.objects.options import ObjectsOptions
from localscale.lab.data.objects.panoramas import split_panoramas
from localscale.lab.data.objects.random_scenes import random_group
from localscale.lab.data.objects.renderer import RENDERERS, Assets, Rendering
from localscale.lab.data.objects.scenes import Scene
from localscale.lab.randomness import stream

__all__ = ["KIND", "objects_job"]

KIND = "objects"
PIXEL_VERSION = 1  # increase it whenever the same settings give other pixels


def objects_job(options: ObjectsOptions) -> Job:
    """Return the job that writes the dataset described by ``options``; an item is a group of images.

    This function reads every mesh and panorama once. Unusable files are left out and listed in the settings.
    """
    options.check()
    if options.renderer not in RENDERERS:
        raise ConfigError(f'no renderer "{options.renderer}": {near_misses(options.renderer, RENDERERS)}')
    meshes, rejected_meshes = read_meshes(options.meshes, up=options.up)
    panoramas, rejected_panoramas = read_panoramas(options.panoramas)
    names = split_panoramas(panorama.name for panorama in panoramas)[options.split]
    chosen = [panorama for panorama in panoramas if panorama.name in names]
    settings = {
        "seed": options.seed,
        "split": options.split,
        "count": options.count,
        "group_size": options.group_size,
        "image_size": options.image_size,
        "samples": options.samples,
        "image_format": options.image_format,
        "up": options.up,
        "renderer": options.renderer,
        "look": PIXEL_VERSION,
        "classes": [mesh.name for mesh in meshes],
        "meshes_sha256": checksum(meshes),
        "panoramas": names,
        "panoramas_sha256": checksum(chosen),
        "rejected": {
            "meshes": [asdict(rejection) for rejection in rejected_meshes],
            "panoramas": [asdict(rejection) for rejection in rejected_panoramas],
        },
    }
    size = -(-options.count // options.group_size)
    stage = Stage("render", partial(_build, options, tuple(meshes), tuple(chosen)))
    note = f"{len(meshes):,} classes; {len(chosen):,} of {len(panoramas):,} panoramas are for this split"
    return Job(KIND, size, settings, [stage], chunk_size=8, note=note)


def _build(
    options: ObjectsOptions, meshes: Sequence[Entry], panoramas: Sequence[Entry]
) -> Callable[[int], list[Sample] | Skip]:
    assets = Assets(
        {mesh.name: mesh.path for mesh in meshes},
        {panorama.name: panorama.path for panorama in panoramas},
        up=options.up,
    )
    renderer = RENDERERS[options.renderer](assets, size=options.image_size, samples=options.samples)
    extents = {mesh.name: mesh.extent for mesh in meshes}
    class_ids = {mesh.name: index for index, mesh in enumerate(meshes, start=1)}
    notes = {mesh.name: list(mesh.notes) for mesh in meshes}
    names = [panorama.name for panorama in panoramas]

    def make(index: int) -> list[Sample] | Skip:
        rng = np.random.Generator(np.random.PCG64([options.seed, stream(f"objects {options.split}"), index]))
        members = min(options.group_size, options.count - index * options.group_size)
        # A shorter last group is sampled in full, so that its images do not depend on the count.
        scenes = random_group(rng, options.group_size, extents=extents, panoramas=names, renderer=renderer)
        if scenes is None:
            return Skip("no scene found in which both objects can be seen", {"group": index})
        samples = []
        for member, scene in enumerate(scenes[:members]):
            rendering = renderer.render(scene)
            ids = np.array([0, *(class_ids[placement.name] for placement in scene.objects)])
            files = {
                options.image_format: encode_image(rendering.image, options.image_format),
                "class.png": encode_mask(ids[rendering.instances]),
                "instance.png": encode_mask(rendering.instances),
            }
            record = {
                "group": index,
                "member": member,
                "split": options.split,
                **_describe(scene, scenes[0], rendering, class_ids, notes),
            }
            samples.append(Sample(f"{index:06d}_{member:02d}", files, record))
        return samples

    return make


def _describe(
    scene: Scene, reference: Scene, rendering: Rendering, class_ids: dict[str, int], notes: dict[str, list[str]]
) -> dict[str, Any]:
    """Describe a scene for the manifest; an object's ``scale`` is 1 in the group's first image, larger if nearer."""
    objects = []
    for number, (placement, first) in enumerate(zip(scene.objects, reference.objects, strict=True), start=1):
        objects.append(
            {
                "class": placement.name,
                "class_id": class_ids[placement.name],
                "instance_id": number,
                "scale": _shorten(first.distance / placement.distance),
                "distance": _shorten(placement.distance),
                "bearing": _shorten(placement.bearing),
                "yaw": _shorten(placement.yaw),
                "position": [_shorten(value) for value in placement.position],
                "size": [_shorten(side * placement.factor) for side in placement.extent],
                "size_factor": _shorten(placement.factor),
                "visible": _shorten(rendering.coverage.visible[number - 1]),
                "pixels": int((rendering.instances == number).sum()),
                "notes": notes[placement.name],
            }
        )
    camera = {name: _shorten(value) for name, value in asdict(scene.camera).items()}
    return {"panorama": scene.panorama, "camera": camera, "objects": objects}


def _shorten(value: float) -> float:
    return round(float(value), 6)
