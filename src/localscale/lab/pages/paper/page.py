"""The page as Markdown, in the paper's order."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from localscale.lab.pages.paper import tables
from localscale.lab.pages.paper.findings import Findings
from localscale.lab.pages.paper.statements import DEFINITIONS, SETTINGS, Statement
from localscale.lab.pages.results.markdown import render_rows
from localscale.lab.pages.results.page import read_results
from localscale.lab.pages.results.paper import CLASSIFICATION

__all__ = ["FIGURES", "TABLES", "render_paper"]

INTRODUCTION = """# The paper, line by line

Read this page if you know *Local Scale Equivariance with Latent Deep Equilibrium Canonicalizer* (ICCV 2025) and want
to know where each part of it is, how to repeat it, and whether it held here. It follows the paper's order.
`localscale tables` writes it from `results/*.json`; do not edit it by hand.

In short: the definitions are implemented as printed, and the page says where a statement does not hold. In our runs
the paper's DEC, trained by the task alone, gains little or nothing over a control that is trained as long, and loses on
ImageNet; on MNIST it hardly leaves the identity. The paper has no such control. The [size equilibrium](idea.md), which
is ours, gains much on MNIST. Our runs are smaller than the paper's: small backbones, shorter training, and for ImageNet
fewer images. So an effect that is missing here may exist there."""


@dataclass(frozen=True)
class PaperTable:
    """A table of the paper: its number and subject, the command that repeats it, and the rendering beside ours."""

    title: str
    command: str
    render: Callable[[Findings], str]
    note: str = ""


@dataclass(frozen=True)
class PaperFigure:
    """A figure of the paper, and the command that draws ours."""

    title: str
    command: str
    ours: str


TABLES = (
    PaperTable(
        "Tab. 1: segmentation of rendered objects",
        "localscale reproduce objects-tiny",
        tables.OBJECTS.render,
        "The objects were rendered anew, and DeiT-Tiny stands beside the paper's ViT. Our EquE is per pixel; "
        "the paper does not say whether its EquE is.",
    ),
    PaperTable(
        "Tab. 2: MNIST",
        "localscale reproduce mnist-small",
        tables.MNIST.render,
        "The paper tests on 50,000 images. Ours are small members of its families, trained for fewer epochs. "
        "`localscale reproduce mnist-resnet` trains ResNet-50. Rows that continue Aug take a tenth of its rate. "
        "The paper's DEC has one to four modules and Anderson's solver, and its scripts have canonicalizer rates from "
        "3e-4 to 2e-2, by backbone; the last column says what our rows had.",
    ),
    PaperTable(
        "Tab. 2, DEC alone: canonicalizer rate, modules and separation",
        "localscale reproduce mnist-dec-sweep --seeds 1",
        tables.render_sweep,
        "DeiT-Tiny. Each cell: accuracy in % without / with the loss that pushes the maps of an image and of its "
        "scaled copy apart; in brackets, by how much of the side the module that moves most moves points.",
    ),
    PaperTable(
        "Tab. 3: MNIST by scale",
        "localscale reproduce mnist-small",
        tables.render_mnist_scales,
        "Accuracy in % for digits of 0.4 to 1, 1 to 2 and 2 to 3; then mean ± standard deviation over the three.",
    ),
    PaperTable(
        "Tab. 4: locally scaled ImageNet",
        "localscale reproduce imagenet-tiny",
        tables.IMAGENET.render,
        "The paper fine-tunes on 10,000 images and tests on 50,000; we fine-tune on 1,000.",
    ),
    PaperTable(
        "Tab. 5: ImageNet by scale",
        "localscale reproduce imagenet-tiny",
        tables.render_imagenet_scales,
        "Accuracy in % at 0.7, 0.8 … 1.3; then mean ± standard deviation over the seven.",
    ),
    PaperTable(
        "Sec. 5.2 and App. A4: time and memory",
        "python -m benchmarks --suite training --device cuda",
        tables.render_runtime,
        "Batch 10 at 224 px. The paper does not name its network, sites or number of steps; ours is ViT-B/16 with two "
        "sites and ten steps per solve. Memory is what a step takes above weights and optimizer. Optim's grows with "
        "steps, modules and the size of the look, because it keeps every step; that of DEC does not grow with steps.",
    ),
    PaperTable(
        "Tab. A2: hierarchical backbones",
        "localscale reproduce mnist-hierarchical-paper",
        tables.HIERARCHICAL.render,
        "Our backbones have no pretrained weights; the paper does not say how its were pretrained. The command has the "
        "paper's 224 px and 6,000 images. The runs of `mnist_hierarchical` had 48,000 images of 112 px.",
    ),
    PaperTable(
        "Tab. A3 and A4: ablations",
        "localscale reproduce mnist-ablation-dec",
        tables.render_ablations,
        "Each cell: the paper's accuracy in %; then ours on DeiT-Tiny, with the paper's DEC / with the size "
        "equilibrium, whose layers are the residual blocks of its network.",
    ),
    PaperTable("Tab. A5: ImageNet at scale 1", "localscale reproduce imagenet-tiny", tables.render_scale_1),
)

FIGURES = (
    PaperFigure(
        "Fig. 1: two parts scaled differently, and the answers",
        "localscale figure teaser --run runs/… --control runs/… --image photo.jpg --boxes …",
        "[training](training.md#figures)",
    ),
    PaperFigure("Fig. 2: global and local scaling", "localscale figure functions", "[maps](maps.md)"),
    PaperFigure("Fig. 3: the method", "localscale figure pipeline", "[the idea](idea.md#the-papers-dec)"),
    PaperFigure("Fig. 4: a warped image", "localscale figure warp --image photo.jpg", "[maps](maps.md)"),
    PaperFigure("Fig. 5: samples of objects", "localscale figure samples --data out/objects", "[data](data.md)"),
    PaperFigure("Fig. 6: samples of MNIST", "localscale figure samples --data out/mnist", "[data](data.md)"),
    PaperFigure("Fig. 7: samples of ImageNet", "localscale figure samples --data out/imagenet", "[data](data.md)"),
    PaperFigure(
        "Fig. 8: how ImageNet is made, (a) to (f)", "localscale figure stages --image photo.jpg", "[data](data.md)"
    ),
    PaperFigure(
        "Fig. 9 and A1: probability against scale",
        "localscale figure probability --runs Base=runs/… DEC=runs/… --image photo.jpg",
        "[training](training.md#figures)",
    ),
    PaperFigure(
        "Fig. A2: learned scalings", "localscale figure learned --run runs/…", "[training](training.md#figures)"
    ),
)


def render_paper(folder: Path) -> str:
    """Return the page for the results in ``folder``."""
    findings = Findings(read_results(folder))
    parts = [INTRODUCTION, "## Definitions", _statements(DEFINITIONS), "## Settings", _statements(SETTINGS)]
    parts.append("## Tables and figures of results")
    for table in TABLES:
        parts += [
            f"### {table.title}",
            f"`{table.command}`",
            *([table.note] if table.note else []),
            table.render(findings),
        ]
    parts += ["## Statements in the text", _text_claims(), "## Figures", _figures()]
    return "\n\n".join(parts) + "\n"


def _statements(statements: tuple[Statement, ...]) -> str:
    return render_rows(
        [
            {
                "where": each.where,
                "the paper": each.says,
                "code; test": "; ".join(
                    (", ".join(f"`{name.removeprefix('localscale.')}`" for name in each.code), f"`{each.test}`")
                ),
                "holds": each.holds,
            }
            for each in statements
        ],
        own=True,
    )


def _figures() -> str:
    return render_rows(
        [{"the paper": each.title, "command": f"`{each.command}`", "ours": each.ours} for each in FIGURES],
        own=True,
    )


def _text_claims() -> str:
    """Return the sums that the paper's text states, beside those of its own table."""
    rows = CLASSIFICATION["mnist"]
    families = [rows[name] for name in ("ResNet", "ViT", "DeiT", "Swin", "BEiT", "DINOv2")]

    def mean_gain(column: int) -> float:
        return statistics.fmean(_number(each["dec"][column]) - _number(each["aug"][column]) for each in families)

    claims = [
        ("On average DEC improves Aug by 4.10 points on MNIST", f"{mean_gain(0):+.2f} points by Tab. 2"),
        ("On average DEC improves InvE by 8.91", f"{-mean_gain(1):.2f} by Tab. 2"),
        (
            "DEC reduces InvE from 18.08 to 9.85 on ResNet and from 6.30 to 1.31 on DINOv2",
            " and ".join(f"from {rows[n]['aug'][1]} to {rows[n]['dec'][1]}" for n in ("ResNet", "DINOv2"))
            + " by Tab. 2",
        ),
    ]
    table = render_rows([{"the text": text, "the table": figure} for text, figure in claims])
    return f"Three figures in the text of Sec. 5.2 are not those of the paper's own table.\n\n{table}"


def _number(printed: str) -> float:
    """Return the mean of a printed figure.

    >>> _number("93.09 ± 0.41")
    93.09
    """
    return float(printed.partition(" ")[0])
