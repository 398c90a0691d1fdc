"""Reports: every section shows the numbers of the run, nothing is fetched, and errors are sentences."""

import dataclasses
import json
import shutil
from pathlib import Path

import pytest
from tiny_reports import Page, copied, tiny_imagenet, tiny_recipes

from localscale.cli import main
from localscale.errors import CheckpointError, ConfigError, DataError, OutputError
from localscale.lab.pages.html import Html, element, table
from localscale.lab.pages.report import render_report, write_report
from localscale.lab.pages.report.gallery import examples_section
from localscale.lab.pages.report.plots import draw_histogram, draw_panels
from localscale.lab.pages.report.solver import solver_section
from localscale.lab.pictures.learned import learned_maps
from localscale.lab.runs import read_run
from localscale.lab.runs.answers import SiteHealth, measure_changes, open_model
from localscale.lab.runs.groups import open_groups
from localscale.lab.tasks.imagenet import ImageNetData
from localscale.lab.training import train

SECTIONS = ["scores", "scales", "training", "warps", "examples", "solver", "settings"]


@pytest.fixture(scope="module")
def page(numbers: Path) -> str:
    return render_report(numbers / "dec", control=numbers / "aug", images=6)


@pytest.fixture(scope="module")
def masks(scenes: Path) -> str:
    return render_report(scenes / "dec", control=scenes / "canon")


def result_of(folder: Path) -> dict:
    return json.loads((folder / "result.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize("which", ["page", "masks"])
def test_a_page_has_every_section_and_fetches_nothing(which: str, request: pytest.FixtureRequest):
    text = request.getfixturevalue(which)
    found = Page(text)
    assert found.sections == SECTIONS
    assert found.sources, "pictures and links"
    assert all(source.startswith(("data:image/", "#")) for source in found.sources)
    assert "http" not in text
    assert "script" not in found.names
    assert "link" not in found.names
    assert "url(" not in text.replace("url(#", "")
    assert {source[1:] for source in found.sources if source.startswith("#")} <= {*found.ids, *found.sections}
    assert len(text.encode()) < 3_000_000
    assert "prefers-color-scheme: dark" in text
    assert "#010203" not in text, "ink is the page's own"


def test_scores_are_those_of_the_result_and_of_the_paper(numbers: Path, page: str):
    found = Page(page)
    for label, folder in (("this run: mnist-deit_tiny-dec", "dec"), ("control: mnist-deit_tiny-aug", "aug")):
        metrics = result_of(numbers / folder)["metrics"]
        errors = [f"{100 * metrics['invariance_error'][kind]:.2f}" for kind in ("squared", "l2", "relative")]
        assert found.row(label)[:6] == [f"{100 * metrics['accuracy']:.2f}", *errors, "8", "2"]
    assert found.row("paper: dec, DeiT")[:2] == ["96.46 ± 0.14", "6.02 ± 2.71"]
    assert found.row("paper: aug, DeiT")[:2] == ["90.91 ± 1.18", "16.17 ± 4.94"]


def test_scales_are_those_of_the_result_and_of_the_paper(numbers: Path, page: str):
    found = Page(page)
    scales = result_of(numbers / "dec")["metrics"]["per_scale"]
    start = found.cells.index("0.4–1.0")
    names = found.cells[start - 1 : start + 4]
    assert names == ["", "0.4–1.0", "1.0–2.0", "2.0–3.0", "mean ± std"]
    values = [f"{100 * value:.2f}" for value in scales["accuracy"].values()]
    total = f"{100 * scales['mean']:.2f} ± {100 * scales['std']:.2f}"
    assert found.cells[start + 4 : start + 9] == ["this run", *values, total]
    assert found.row("paper (Swin)")[:4] == ["95.14", "97.81", "96.64", "96.53 ± 1.09"]


def test_masks_have_their_own_scores(scenes: Path, masks: str):
    found, metrics = Page(masks), result_of(scenes / "dec")["metrics"]
    errors = [f"{metrics['equivariance_error'][kind]:.4f}" for kind in ("squared", "l2", "relative")]
    deviation = f"{100 * metrics['group_deviation']:.2f}"
    expected = [f"{100 * metrics['mean_iou']:.2f}", *errors, deviation, "12", "4"]
    assert found.row("this run: objects-vit_base-dec")[:7] == expected
    assert found.row("paper: dec, ViT")[:2] == ["83.12", "0.052"]
    assert found.row("paper: canon, ViT")[:2] == ["79.37", "0.062"]
    assert "per scale was not measured" in masks
    assert masks.count('alt="true mask"') == masks.count('alt="mask of control"') == 12


def test_curves_are_drawn_for_everything_that_was_logged(page: str):
    for title in ("loss", "learning rate", "gradient norm", "residual", "solver steps", "displacement, % of the side"):
        assert f"<figcaption>{title}</figcaption>" in page


def test_settings_that_differ_come_first(page: str):
    differing = page[page.index("Settings that differ") : page.index("<details>")]
    assert "<mark>method.kind</mark></th><td>DEC</td><td>FineTune</td>" in differing
    assert "<mark>name</mark>" in differing
    assert "optimization.batch_size" not in differing
    assert "optimization.batch_size" in page


def test_solver_statistics_cover_every_image(numbers: Path, page: str):
    run = read_run(numbers / "dec")
    groups = open_groups(run)
    changes, health = measure_changes(open_model(run), map(groups.read, range(6)))
    assert len(changes) == 6
    site = health["input"]
    assert len(site.residual) == len(site.converged) == 6 * 3
    cells = Page(page).row("this run: input")
    assert cells[:2] == ["18", f"{100 * sum(site.converged) / 18:.1f}"]
    assert cells[3] == f"{max(site.residual):.2e}"


def test_examples_are_ranked_by_change(numbers: Path):
    run = read_run(numbers / "dec")
    models, groups = {"this run": open_model(run)}, open_groups(run)
    shown = examples_section(models, {"this run": [0.1, 0.7, 0.3, 0.2, float("nan"), 0.9, 0.0]}, groups)
    order = [shown.index(f"<b>test image {k}:") for k in (5, 1, 2, 6, 0, 3)]
    assert order == sorted(order)
    assert "test image 4:" not in shown
    assert shown.index("Changes least") > shown.index("<b>test image 2:")
    both = models | {"control": open_model(read_run(numbers / "aug"))}
    changes = {"this run": [0.7, 0.6, 0.5, 0.1, 0.2, 0.3, 0.4, 0.45], "control": [0.9] * 6 + [0.1, 0.2]}
    shown = examples_section(both, changes, groups)
    others = shown[shown.index("Changes most (control)") :]
    assert others.index("<b>test image 7:") < others.index("<b>test image 6:")
    assert [shown.count(f"<b>test image {k}:") for k in range(8)] == [1] * 8
    nothing = examples_section(models, {"this run": [float("nan")]}, groups)
    assert "no change to rank by" in nothing


def test_a_model_without_canonicalizers_has_no_maps(numbers: Path):
    text = render_report(numbers / "aug", images=2)
    assert "has no canonicalizer" in text
    assert "have no equilibrium to solve" in text
    assert Page(text).sections == SECTIONS


def test_photographs_are_shown_at_their_scales(tmp_path: Path):
    made = tiny_imagenet.write_scaled_discs(tmp_path)
    data = ImageNetData(train_root=tmp_path / "images", test_root=made, image_size=64, workers=0)
    recipe = tiny_recipes.tiny(
        tmp_path, "dec", epochs=1, batch_size=6, name="imagenet-deit_tiny-dec", pretrained="none"
    )
    train(dataclasses.replace(recipe, data=data), tmp_path / "run", cpu=True)
    shutil.rmtree(tmp_path / "images")  # the training images are not needed
    text = render_report(tmp_path / "run")
    found = Page(text)
    assert found.sections == SECTIONS
    assert found.row("paper: dec, DeiT")[:2] == ["69.27", "11.08"]
    assert text.count("×1.2</small>") == 6
    assert "this run: red" in text or "this run: green" in text or "this run: blue" in text
    for sizes in (1, 2):  # groups may have one image more, the unscaled one
        images, m, captions = learned_maps(tmp_path / "run", numbers=2, sizes=sizes)
        assert (len(images), m.batch, len(captions)) == (2 * sizes,) * 3


def test_names_are_escaped(numbers: Path, tmp_path: Path):
    run = copied(numbers / "dec", tmp_path / "<b>&", name="<script>alert('1')</script>")
    text = render_report(run, images=1)
    assert "script" not in Page(text).names
    assert "&lt;script&gt;alert(" in text
    assert "The paper has no row for this recipe" in text
    assert element("p", "a<b", Html("<i>c</i>"), title='"') == '<p title="&quot;">a&lt;b<i>c</i></p>'
    assert "&lt;td&gt;" in table([""], [["<td>"]])


def test_the_command_writes_the_page(numbers: Path, scenes: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    run = copied(numbers / "dec", tmp_path / "run")
    main(["report", str(run), "--control", str(numbers / "aug"), "--images", "2", "--quiet"])
    assert capsys.readouterr().out.strip() == str(run / "report.html")
    assert (run / "report.html").read_text(encoding="utf-8").startswith("<!DOCTYPE html>")
    assert not list(run.glob(".*.part"))
    with pytest.raises(SystemExit, match=r"localscale: there is no folder .*gone"):
        main(["report", str(tmp_path / "gone")])
    with pytest.raises(SystemExit, match=r"has another task: objects"):
        main(["report", str(run), "--control", str(scenes / "dec")])


def test_missing_data_is_reported_and_can_be_named(numbers: Path, tmp_path: Path):
    run = copied(numbers / "dec", tmp_path / "numbers", data__root=str(tmp_path / "gone"))
    text = render_report(run)
    assert Page(text).sections == SECTIONS
    assert text.count("Left out. The test images cannot be read: no MNIST in") == 3
    assert "Name their folder (data.root) with --data FOLDER" in text
    assert text.count("data:image/") == 0
    assert render_report(run, data=numbers, images=1).count("data:image/") > 0
    with pytest.raises(DataError, match=r"no MNIST in"):
        render_report(run, data=tmp_path / "gone")


def test_missing_weights_and_logs_are_reported(numbers: Path, tmp_path: Path):
    run = copied(numbers / "dec", tmp_path / "run")
    (run / "weights.safetensors").unlink()
    (run / "log.jsonl").unlink()
    text = render_report(run, control=numbers / "aug")
    assert Page(text).sections == SECTIONS
    assert "A trained model cannot be read: there is no weights.safetensors in" in text
    assert "There is no log.jsonl in the folder of this run" in text
    (run / "log.jsonl").write_text("{", encoding="utf-8")
    with pytest.raises(CheckpointError, match=r"log\.jsonl cannot be read"):
        render_report(run)


def test_bad_arguments_are_refused(numbers: Path, tmp_path: Path):
    with pytest.raises(ConfigError, match=r"images is 0; expected at least 1"):
        render_report(numbers / "dec", images=0)
    with pytest.raises(ConfigError, match=r"report\.pdf ends in \.pdf; expected \.html"):
        write_report(numbers / "dec", out=tmp_path / "report.pdf")
    (tmp_path / "file").touch()
    with pytest.raises(OutputError, match=r"cannot be written"):
        write_report(numbers / "aug", out=tmp_path / "file" / "report.html", images=1)


def test_plots_accept_numbers_that_are_not_finite():
    nan, inf = float("nan"), float("inf")
    drawn = draw_panels({"loss": {"this run": ([1, 2], [nan, nan])}}, logarithmic=["loss"])
    assert drawn.count("<svg") == 1
    assert "<svg" in draw_histogram({"input": [nan, inf, 0.0, 1e-3]}, "residuals", mark=1e-3)
    health = SiteHealth([1e-4, nan], [3.0, 3.0], [1.0, 0.0], [0.1, 0.1], [0.5, -0.1])
    shown = solver_section({"this run": {"input": health}}, {"this run": 1e-3})
    assert "<td>50.0</td>" in shown
    assert "<td>nan</td>" in shown
    assert "<td>-0.100</td>" in shown
