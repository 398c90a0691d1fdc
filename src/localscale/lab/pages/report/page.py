"""The report: all sections in one self-contained HTML file."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from tqdm import tqdm

from localscale.adaptation import AdaptedModel
from localscale.errors import CheckpointError, ConfigError, DataError, MissingExtraError
from localscale.extras import require
from localscale.files import write_whole
from localscale.lab.pages.html import Html, element, join, section
from localscale.lab.pages.report.gallery import examples_section, warps_section
from localscale.lab.pages.report.scores import per_scale_section, scores_section
from localscale.lab.pages.report.settings import curves_section, settings_section
from localscale.lab.pages.report.solver import solver_section
from localscale.lab.pages.report.style import STYLE
from localscale.lab.runs.answers import measure_changes, open_model
from localscale.lab.runs.finished import FinishedRun, check_control, read_run
from localscale.lab.runs.groups import ImageGroup, ImageGroups, open_groups

__all__ = ["render_report", "write_report"]

RUN, CONTROL = "this run", "control"
LINKS = {
    "scores": "Scores",
    "scales": "Per scale",
    "training": "Training",
    "warps": "Warps",
    "examples": "Examples",
    "solver": "Solver",
    "settings": "Configuration",
}


def write_report(
    run: Path,
    *,
    control: Path | None = None,
    out: Path | None = None,
    images: int = 64,
    data: Path | None = None,
    progress: bool = False,
) -> Path:
    """Write the report on ``run`` atomically and return its path, by default ``report.html`` in the run's folder.

    >>> write_report(Path("runs/dec"), control=Path("runs/aug"))  # doctest: +SKIP
    PosixPath('runs/dec/report.html')
    """
    target = run / "report.html" if out is None else out
    if target.suffix not in (".html", ".htm"):
        raise ConfigError(f"{target} ends in {target.suffix or 'nothing'}; expected .html")
    write_whole(target, render_report(run, control=control, images=images, data=data, progress=progress))
    return target


def render_report(
    run: Path, *, control: Path | None = None, images: int = 64, data: Path | None = None, progress: bool = False
) -> str:
    """Return the report on a finished run as HTML.

    Args:
        run: folder of a finished run.
        control: folder of a finished run of the same task to compare with.
        images: number of test images, or scenes, for examples and solver statistics.
        data: folder of the test images; ``None`` means the folder that the recipe names.
        progress: show a progress bar.

    >>> render_report(Path("runs/dec"), images=16)  # doctest: +SKIP
    """
    if images < 1:
        raise ConfigError(f"--images is {images}; expected at least 1")
    require("matplotlib", "figures")
    runs = {RUN: read_run(run)}
    if control is not None:
        runs[CONTROL] = read_run(control)
        check_control(runs[RUN], runs[CONTROL])
    sections = [
        scores_section(runs),
        per_scale_section(runs),
        curves_section(runs),
        *_sections_of_images(runs, images, data, progress=progress),
        settings_section(runs),
    ]
    return _page(runs[RUN], sections)


def _sections_of_images(runs: dict[str, FinishedRun], count: int, data: Path | None, *, progress: bool) -> list[Html]:
    """Return the sections that need models and test images; if these cannot be read, the sections say why."""
    try:
        return _test_models(runs, count, data, progress=progress)
    except CheckpointError as error:
        return _left_out(f"A trained model cannot be read: {error}. Copy weights.safetensors into its folder.")
    except (DataError, ConfigError, MissingExtraError) as error:
        if data is not None:
            raise
        field = runs[RUN].recipe.data.test_field.replace("_", "-")
        return _left_out(
            f"The test images cannot be read: {error}. Name their folder (data.{field}) with --data FOLDER."
        )


def _test_models(runs: dict[str, FinishedRun], count: int, data: Path | None, *, progress: bool) -> list[Html]:
    groups = open_groups(runs[RUN].with_data(data))
    models = {label: open_model(run) for label, run in runs.items()}
    changes, healths, tolerances = {}, {}, {}
    for label, model in models.items():
        changes[label], healths[label] = measure_changes(
            model, _first(groups, min(count, groups.count), label, progress=progress)
        )
        if isinstance(model.network, AdaptedModel):
            tolerances[label] = next(iter(model.network.canonicalizers.values())).solver.tolerance
    shown = [
        warps_section(models[RUN], groups, RUN),
        examples_section(models, changes, groups),
        solver_section(healths, tolerances),
    ]
    return [element("p", groups.note, class_="note"), *shown] if groups.note else shown


def _first(groups: ImageGroups, count: int, label: str, *, progress: bool) -> Iterator[ImageGroup]:
    numbers = tqdm(range(count), desc=label, unit="image", leave=False, disable=not progress)
    return (groups.read(number) for number in numbers)


def _left_out(why: str) -> list[Html]:
    titles = {"warps": "Learned warps", "examples": "Examples", "solver": "Solver health"}
    return [section(anchor, title, element("p", "Left out. ", why, class_="note")) for anchor, title in titles.items()]


def _page(run: FinishedRun, sections: list[Html]) -> str:
    name = run.recipe.name or run.folder.name
    links = [element("a", title, href=f"#{anchor}") for anchor, title in LINKS.items()]
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("title", f"{name} · localscale report"),
        element("style", Html(STYLE)),
    )
    about = f"{run.recipe.backbone}, {type(run.recipe.method).__name__}, {run.task}, seed {run.recipe.seed}"
    body = element("body", element("h1", name), element("p", about), element("nav", *links), *sections)
    return join([Html("<!DOCTYPE html>\n"), element("html", head, body, lang="en"), "\n"])
