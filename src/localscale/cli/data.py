"""``localscale data mnist|objects|imagenet|fetch|show``: write, download and show the datasets."""

from __future__ import annotations

from dataclasses import dataclass, make_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Union

import tyro
from tyro.conf import subcommand

from localscale.errors import ConfigError, DataError

if TYPE_CHECKING:
    from localscale.lab.data.generation import Job
    from localscale.lab.data.registry import DatasetKind


@dataclass(frozen=True)
class Output:
    """Output folder and resources. The written files do not depend on --workers, --engine or interruptions."""

    out: Path
    """Folder to write. Run the same command again to continue an interrupted run."""
    form: Literal["folder", "shards"] = "folder"
    """Write separate files in folders, or WebDataset shards (tar files)."""
    workers: int = 1
    """Number of worker processes on this machine. A good value is the number of cores."""
    chunk_size: int | None = None
    """Items per subfolder or shard. The default is a few seconds' work."""
    engine: Literal["local", "ray"] = "local"
    """Run in processes on this machine, or on a Ray cluster (requires the extra "ray")."""
    address: str | None = None
    """Address of the Ray cluster, such as "auto" or "ray://host:10001". Without it a local cluster is started."""


@dataclass(frozen=True)
class Fetch:
    """Download the sources of a dataset: Google Scanned Objects and Poly Haven panoramas for "objects"."""

    dataset: tyro.conf.Positional[Literal["objects"]]
    """The dataset whose sources are downloaded."""
    out: Path
    """Folder to write: meshes/, panoramas/, LICENCES.md and sources.json. Existing files are kept."""
    meshes: int = 100
    """Number of scanned objects."""
    panoramas: int = 24
    """Number of panoramas."""
    resolution: str = "1k"
    """Resolution of the panoramas: 1k, 2k, 4k …"""

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
class ContactSheet:
    """Draw a contact sheet of a written dataset: the images of each group side by side, with their masks."""

    dataset: tyro.conf.Positional[Path]
    """Folder that `localscale data` wrote."""
    out: Path | None = None
    """PNG file to write. The default is the dataset's folder name with .png, beside that folder."""
    groups: int = 6
    """Number of groups. A group is a set of images that differ in scale only."""
    columns: int = 8
    """Largest number of images of each group."""

    def run(self) -> None:
        from localscale.files import write_whole
        from localscale.lab.data.images import encode_image
        from localscale.lab.pictures.contact_sheet import contact_sheet

        sheet = contact_sheet(self.dataset, groups=self.groups, columns=self.columns)
        folder = self.dataset.resolve()
        target = self.out or folder.with_name(f"{folder.name}.png")
        if target.suffix.lower() != ".png":
            raise ConfigError(f"--out is {target}; expected a file name that ends in .png")
        write_whole(target, encode_image(sheet))
        print(f"contact sheet: {target}")


def write_dataset(job: Job, output: Output) -> None:
    """Write the dataset of ``job`` and print the numbers of images and skipped items."""
    from localscale.lab.data.generation import generate

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
    if summary.skipped:
        kept = job.size - sum(summary.skipped.values())
        print(f"  kept {kept:,} of {job.size:,} items ({kept / job.size:.1%})")
    for reason, count in summary.skipped.items():
        print(f"  skipped {count:,}: {reason}")
    if not summary.images:
        raise DataError("every item was skipped, for the reasons above; change the options and use another --out")
    print(f"to see them: localscale data show {output.out}")


def dataset_command(name: str, kind: DatasetKind) -> type:
    """Return the dataclass of the subcommand that writes a dataset of this kind."""

    def run(self: Any) -> None:
        write_dataset(kind.job(self.dataset), self.output)

    namespace = {"run": run, "__doc__": kind.options.__doc__}
    return make_dataclass(name, [("output", Output), ("dataset", kind.options)], namespace=namespace, frozen=True)


def __getattr__(name: str) -> Any:
    """Return the union ``Data`` of all subcommands, with one for each dataset that is registered at this moment."""
    if name != "Data":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from localscale.lab.data.registry import DATASETS

    commands = {key: dataset_command(key, kind) for key, kind in DATASETS.items()}
    commands |= {"fetch": Fetch, "show": ContactSheet}
    return Union[*(Annotated[command, subcommand(key)] for key, command in commands.items())]
