"""``localscale figure``: figures from data, finished runs and results."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from tyro.conf import OmitSubcommandPrefixes, subcommand

from localscale.cli.figures.of_images import Animation, Probability, Stages, Teaser, Warp
from localscale.cli.figures.of_methods import Functions, Pipeline, Samples
from localscale.cli.figures.of_results import Canonical, Growth, Learned, Masks, PerScale, Residual

__all__ = ["Figure"]


@dataclass(frozen=True)
class Figure:
    """Draw a figure from data, finished runs or results."""

    which: OmitSubcommandPrefixes[
        Annotated[Pipeline, subcommand("pipeline")]
        | Annotated[Teaser, subcommand("teaser")]
        | Annotated[Stages, subcommand("stages")]
        | Annotated[Functions, subcommand("functions")]
        | Annotated[Warp, subcommand("warp")]
        | Annotated[PerScale, subcommand("per-scale")]
        | Annotated[Probability, subcommand("probability")]
        | Annotated[Learned, subcommand("learned")]
        | Annotated[Canonical, subcommand("canonical")]
        | Annotated[Animation, subcommand("animation")]
        | Annotated[Samples, subcommand("samples")]
        | Annotated[Residual, subcommand("residual")]
        | Annotated[Growth, subcommand("growth")]
        | Annotated[Masks, subcommand("masks")]
    ]

    def run(self) -> None:
        self.which.run()
