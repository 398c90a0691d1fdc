"""Segmentation results as a table, beside the paper's figures."""

import json

import pytest

from localscale.cli.training import describe
from localscale.errors import DataError
from localscale.lab.pages.results import render_page
from localscale.lab.pages.results.segmentation import render_segmentation

METRICS = {
    "images": 1200,
    "variants": 3,
    "mean_iou": 0.5,
    "equivariance_error": {"squared": 0.0512, "l2": 0.1234, "relative": 0.2345},
    "equivariance_floor": {"squared": 0.0101, "l2": 0.0202, "relative": 0.0303},
    "group_deviation": 0.0417,
    "groups": 300,
}


def a_run(row: str = "aug", label: str = "Aug", backbone: str = "vit_tiny") -> dict:
    return {
        "label": label,
        "row": row,
        "backbone": backbone,
        "budget_epochs": 180,
        "metrics": dict(METRICS),
        "data": "6,000 training images; 1,200 test images of 300 scenes; 21 classes, background among them; EquE with",
        "last_epoch": {"epoch": 3, "loss": 0.1},
        "recipe": {
            "optimization": {"batch_size": 32},
            "head_width": 256,
            "data": {"scaling": {"family": "grid", "knots": 6, "strength": 1.0}},
        },
    }


def a_result(*runs: dict) -> dict:
    about = {"kind": "segmentation", "table": "objects", "title": "Objects", "paper": "objects"}
    return {**about, "command": "localscale …", "machine": "a machine", "versions": {"torch": "2"}, "runs": list(runs)}


def cells(page: str, label: str) -> dict[str, str]:
    """Return the cells of a row by column."""
    table = [line.strip("| ").split(" | ") for line in page.splitlines() if line.startswith("| ")]
    return dict(zip(table[0], next(row for row in table if row[1] == label), strict=True))


def test_small_objects_have_a_column_if_a_run_measured_them():
    new, old = a_run(), a_run("canon", "Canon")
    assert "small" not in render_segmentation(a_result(old))
    new["metrics"]["small_object_iou"] = 0.3123
    page = render_segmentation(a_result(new, old))
    assert [cells(page, row)["mIoU % of small objects"] for row in ("Aug", "Canon")] == ["31.23", "–"]
    assert "mIoU 31.23 % of the smaller half of the objects" in describe(new["metrics"])
    assert "smaller half" not in describe(old["metrics"])


def test_a_row_has_its_measures_and_the_papers():
    assert cells(render_segmentation(a_result(a_run())), "Aug") == {
        "backbone": "vit_tiny",
        "row": "Aug",
        "seeds": "1",
        "epochs": "180",
        "mIoU %": "50.00",
        "EquE": "0.0512",
        "l2": "0.1234",
        "relative": "0.2345",
        "IoU deviation %": "4.17",
        "paper: mIoU %": "82.18",
        "paper: EquE": "0.054",
    }


@pytest.mark.parametrize(
    ("row", "backbone", "printed"),
    [
        ("augl", "swin_tiny", ("87.63", "0.037")),
        ("dec_compose_joint", "vit_tiny", ("83.12", "0.052")),
        ("aug_plus", "vit_tiny", ("–", "–")),
        ("aug", "resnet18", ("–", "–")),
        ("aug", "deit_tiny", ("82.18", "0.054")),  # ViT's
    ],
)
def test_the_papers_figure_is_that_of_the_family_and_method(row: str, backbone: str, printed: tuple[str, str]):
    found = cells(render_segmentation(a_result(a_run(row, "It", backbone=backbone))), "It")
    assert (found["paper: mIoU %"], found["paper: EquE"]) == printed


def test_the_text_says_what_was_measured_and_the_floor():
    page = render_segmentation(a_result(a_run()))
    assert page.startswith("### Objects\n")
    for said in (
        "6,000 training images and 1,200 test images of 300 scenes",
        "Batch size 32; a head of 256 channels",
        "3 random grid maps per image, 6 knots, strength 1",
        "EquE of 0.0101 (l2 0.0202, relative 0.0303)",
    ):
        assert said in page
    assert "by site" not in page


def test_canonicalizers_are_shown_at_their_sites():
    run = a_run("dec_compose", "DEC compose + supervision")
    run["last_epoch"] |= {
        **{"input/residual": 1e-3, "input/steps": 4.0, "input/displacement": 0.012, "supervision": 0.5},
        **{"backbone.blocks.0/residual": 0.02, "backbone.blocks.0/steps": 3.0, "backbone.blocks.0/displacement": 0.1},
    }
    page = render_segmentation(a_result(a_run(), run))
    assert "| vit_tiny | DEC compose + supervision | input | 1.0e-03 | 4 | 1.2 | yes | 0.5 |" in page
    assert "| vit_tiny | DEC compose + supervision | backbone.blocks.0 | 0.02 | 3 | 10 | yes | – |" in page


def test_a_canonicalizer_whose_maps_never_move_is_said_to_be_inert():
    run, last = a_run("dec", "DEC direct"), {"input/residual": 1e-5, "input/steps": 1.0, "input/displacement": 9.9e-4}
    run["last_epoch"] |= last
    page = render_segmentation(a_result(a_run(), run))
    assert "| vit_tiny | DEC direct | input | 1.0e-05 | 1 | 0.099 | inert | – |" in page
    assert "less than 0.1 % of the side: DEC direct of vit_tiny at input." in page
    assert "variation" not in page
    run["last_epoch"] |= {"input/displacement": 1.1e-3, "input/variation": 5e-4}
    page = render_segmentation(a_result(a_run(), run))
    assert "| vit_tiny | DEC direct | input | 1.0e-05 | 1 | 0.11 | 0.05 | yes | – |" in page
    assert "Inert" not in page


def test_a_result_without_its_floor_is_named(tmp_path):
    run = a_run()
    del run["metrics"]["equivariance_floor"]
    (tmp_path / "old.json").write_text(json.dumps(a_result(run)))
    with pytest.raises(DataError, match=r"old\.json is not a result that can be rendered \(KeyError: 'equivariance_"):
        render_page(tmp_path)


def test_masks_are_described_for_a_terminal():
    iou, error, floor, deviation = describe(METRICS).splitlines()
    assert iou.startswith("mIoU 50.00 %")
    assert all(value in error for value in ("EquE", "0.0512", "0.1234", "0.2345"))
    assert all(value in floor for value in ("0.0101", "0.0202", "0.0303"))
    assert "4.17 %" in deviation


def test_both_distributions_are_shown_with_their_displacement():
    new, old = a_run(), a_run("canon", "Canon")
    new["metrics"] |= {
        "mean_iou_objects": 0.4871,
        "displacement": 0.044,
        "uniform": {
            "variants": 4,
            "equivariance_error": {"squared": 0.0876, "l2": 0.2, "relative": 0.3},
            "equivariance_floor": {"squared": 0.0067, "l2": 0.02, "relative": 0.03},
            "displacement": 0.178,
        },
    }
    page = render_segmentation(a_result(new, old))
    assert [cells(page, row)["EquE, uniform"] for row in ("Aug", "Canon")] == ["0.0876", "–"]
    assert [cells(page, row)["mIoU % without background"] for row in ("Aug", "Canon")] == ["48.71", "–"]
    assert "strength 1, which move points by 4.4 % of the side" in page
    assert "4 maps per image with increments uniform on the simplex, which move points by 17.8 % of the side" in page
    said = describe(new["metrics"])
    assert "48.71 % without the background" in said
    assert "scalings of each image: 3, which move points by 4.4 % of the side" in said
    assert "uniform on the simplex 0.0876 squared" in said
    assert "17.8 %" in said
