"""``localscale data mnist|objects|imagenet|fetch|show``: make, fetch and look at the datasets."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro
from tyro.conf import subcommand

from localscale.errors import ConfigError, DataError
from localscale.lab.data.generation import Job, generate
from localscale.lab.data.imagenet.options import ImageNetOptions
from localscale.lab.data.mnist.job import MNISTOptions
from localscale.lab.data.objects.options import ObjectsOptions

__all__ = ["Data"]


@dataclass(frozen=True)
class Output:
    """Where it goes and how it is made. The files depend on none of workers, engine and interruptions."""

    out: Path
    """Folder to write. A run that was stopped goes on where it was when the same command is given again."""
    form: Literal["folder", "shards"] = "folder"
    """Files in a folder, or WebDataset shards (tar)."""
    workers: int = 1
    """Processes on this machine; as many as there are cores is a good choice."""
    chunk_size: int | None = None
    """Items per subfolder or shard; by default what takes some seconds to make."""
    engine: Literal["local", "ray"] = "local"
    """Where the stages run: processes on this machine, or a Ray cluster (extra: ray)."""
    address: str | None = None
    """The Ray cluster's address, such as "auto" or "ray://host:10001"; without it a local one is started."""


@dataclass(frozen=True)
class Mnist:
    """Locally scaled MNIST: three digits, each resized on its own, read as one number from 000 to 999."""

    output: Output
    mnist: MNISTOptions

    def run(self) -> None:
        from localscale.lab.data.mnist import mnist_job

        write(mnist_job(self.mnist), self.output)


@dataclass(frozen=True)
class Objects:
    """Locally scaled objects: two scanned objects before a panorama, each at its own distance, with masks."""

    output: Output
    objects: ObjectsOptions

    def run(self) -> None:
        from localscale.lab.data.objects import objects_job

        write(objects_job(self.objects), self.output)


@dataclass(frozen=True)
class ImageNet:
    """Locally scaled ImageNet: the object of each image cut out, resized about its centre and put back."""

    output: Output
    imagenet: ImageNetOptions

    def run(self) -> None:
        from localscale.lab.data.imagenet import imagenet_job

        write(imagenet_job(self.imagenet), self.output)


@dataclass(frozen=True)
class Fetch:
    """Download what a dataset is made from: for objects, Google Scanned Objects and Poly Haven panoramas."""

    what: tyro.conf.Positional[Literal["objects"]]
    """The dataset to fetch for."""
    out: Path
    """Folder to fill, with meshes/, panoramas/, LICENCES.md and sources.json; what is there already stays."""
    meshes: int = 100
    """How many scanned objects."""
    panoramas: int = 24
    """How many panoramas."""
    resolution: str = "1k"
    """Size of the panoramas: 1k, 2k, 4k …"""

    def run(self) -> None:
        from localscale.lab.data.objects.fetch import fetch_objects

        fetched = fetch_objects(
            self.out, meshes=self.meshes, panoramas=self.panoramas, resolution=self.resolution, progress=True
        )
        print(fetched.licences)
        print(f"{len(fetched.sources):,} files in {self.out}")
        for name, reason in fetched.failed.items():
            print(f"  left out {name}: {reason}")


@dataclass(frozen=True)
class Show:
    """Draw a contact sheet of a written dataset: images, masks, the scales of a scene side by side."""

    dataset: tyro.conf.Positional[Path]
    """Folder that one of the other commands wrote."""
    out: Path | None = None
    """PNG to write; by default the folder's name with .png, beside it."""
    scenes: int = 6
    """How many scenes."""
    columns: int = 8
    """At most so many images of each scene."""

    def run(self) -> None:
        from localscale.files import write_whole
        from localscale.lab.data.images import encode_image
        from localscale.lab.pictures.contact_sheet import contact_sheet

        sheet = contact_sheet(self.dataset, scenes=self.scenes, columns=self.columns)
        folder = self.dataset.resolve()
        target = self.out or folder.with_name(f"{folder.name}.png")
        if target.suffix.lower() != ".png":
            raise ConfigError(f"--out {target} does not end in .png, which is what is written")
        write_whole(target, encode_image(sheet))
        print(f"contact sheet: {target}")


def write(job: Job, output: Output) -> None:
    """Make the dataset and say what came of it."""
    if job.note:
        print(job.note)
    summary = generate(
        job,
        output.out,
        form=output.form,
        chunk_size=output.chunk_size,
        workers=output.workers,
        engine=output.engine,
        address=output.address,
        progress=True,
    )
    print(f"{summary.images:,} images in {output.out}")
    for reason, count in sorted(summary.skipped.items(), key=lambda entry: -entry[1]):
        print(f"  skipped {count:,}: {reason}")
    if not summary.images:
        raise DataError(
            "every item was skipped, for the reasons above; change what leads to them and use another --out"
        )
    print(f"look at them: localscale data show {output.out}")


@dataclass(frozen=True)
class Data:
    """Make, fetch and look at the three locally scaled datasets."""

    command: (
        Annotated[Mnist, subcommand("mnist")]
        | Annotated[Objects, subcommand("objects")]
        | Annotated[ImageNet, subcommand("imagenet")]
        | Annotated[Fetch, subcommand("fetch")]
        | Annotated[Show, subcommand("show")]
    )

    def run(self) -> None:
        self.command.run()
