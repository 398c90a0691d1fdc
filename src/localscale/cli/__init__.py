"""The command line: ``localscale data|recipes|train|evaluate|reproduce|tables|figure|report|app|version``."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from dataclasses import dataclass
from importlib import metadata
from typing import Annotated, Any

import tyro
from tyro.conf import OmitArgPrefixes, OmitSubcommandPrefixes, subcommand

from localscale.cli.app import App
from localscale.cli.data import Data
from localscale.cli.figures import Figure
from localscale.cli.report import Report
from localscale.cli.training import Evaluate, Recipes, Reproduce, Tables, Train, parse_evaluate, parse_train
from localscale.errors import LocalScaleError

__all__ = ["main"]


@dataclass(frozen=True)
class Version:
    """Print the versions of localscale and of what it stands on."""

    def run(self) -> None:
        for package in ("localscale", "torch", "torchvision", "timm", "accelerate", "transformers", "ray"):
            try:
                print(f"{package} {metadata.version(package)}")
            except metadata.PackageNotFoundError:
                print(f"{package} (not installed)")


Command = (
    Annotated[Data, subcommand("data")]
    | Annotated[Recipes, subcommand("recipes")]
    | Annotated[Train, subcommand("train")]
    | Annotated[Evaluate, subcommand("evaluate")]
    | Annotated[Reproduce, subcommand("reproduce")]
    | Annotated[Tables, subcommand("tables")]
    | Annotated[Figure, subcommand("figure")]
    | Annotated[Report, subcommand("report")]
    | Annotated[App, subcommand("app")]
    | Annotated[Version, subcommand("version")]
)

# What follows the name of a recipe or run depends on it, so these two are parsed in two steps.
DEPENDENT: dict[str, Callable[[str, list[str]], Any]] = {"train": parse_train, "evaluate": parse_evaluate}


def main(arguments: list[str] | None = None) -> None:
    """Run the command line; every expected error is a sentence and exit status 1."""
    logging.basicConfig(level=logging.WARNING, format="%(message)s", stream=sys.stderr)
    given = sys.argv[1:] if arguments is None else arguments
    try:
        if len(given) > 1 and given[0] in DEPENDENT and not given[1].startswith("-"):
            DEPENDENT[given[0]](given[1], given[2:]).run()
        else:
            _parse(given).run()
    except LocalScaleError as error:
        raise SystemExit(f"localscale: {error}") from None
    except KeyboardInterrupt:
        print("\nlocalscale: stopped; the same command goes on from here", file=sys.stderr)
        raise SystemExit(130) from None


def _parse(arguments: list[str]) -> Command:
    return tyro.cli(
        OmitSubcommandPrefixes[OmitArgPrefixes[Command]],  # type: ignore[misc]  # an alias is no class to mypy
        prog="localscale",
        description="Vision models that stay consistent when parts of an image change size.",
        args=arguments,
    )
