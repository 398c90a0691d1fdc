"""The campaign at the app's doors runs, and reports what would happen if a door stood open."""

from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

pytest.importorskip("gradio", reason="needs the extra app")
pytest.importorskip("benchmarks.faults", reason="benchmarks are not in this copy")

from benchmarks.faults import CAMPAIGNS
from benchmarks.faults.doors import Doors
from localscale.lab.data import images
from localscale.lab.data.imagenet import image_list
from localscale.lab.pages.app import access, page, uploads


@pytest.fixture(scope="module")
def doors(tmp_path_factory: pytest.TempPathFactory) -> Doors:
    campaign = Doors()
    campaign.prepare(tmp_path_factory.mktemp("doors"))
    return campaign


def said(trial: Callable[[Random], str | None], trials: int = 25) -> str:
    return " ".join(filter(None, (trial(Random(seed)) for seed in range(trials))))


@pytest.mark.slow
def test_nothing_odd_does_harm(doors: Doors):
    assert CAMPAIGNS["doors"] is Doors
    for trial in (doors._upload, doors._path, doors._model, doors._event, doors._dataset):
        assert said(trial, 12) == ""


@pytest.mark.slow
def test_a_program_that_is_started_is_reported(doors: Doors, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(images, "FORMATS", (*images.FORMATS, "EPS"))
    monkeypatch.setattr(
        images.open_image.__wrapped__, "__kwdefaults__", {"formats": images.FORMATS, "most_pixels": None}
    )
    assert "a program was started" in said(doors._upload, 40)


@pytest.mark.slow
def test_a_file_outside_that_is_read_is_reported(doors: Doors, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(uploads, "stays_inside", lambda path, root: True)
    monkeypatch.setattr(Path, "unlink", lambda path, missing_ok=False: None)
    assert "outside" in said(doors._path)


def test_a_link_that_is_followed_is_reported(doors: Doors, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(image_list, "stays_inside", lambda path, root: True)
    assert "outside:" in said(doors._dataset, 3)


def test_a_foreign_exception_of_a_handler_is_reported(doors: Doors, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(page, "read_number", lambda value, *_: float(value))
    assert "a foreign exception came out of a handler" in said(doors._event, 60)


@pytest.mark.slow
def test_nothing_odd_does_harm_by_http(doors: Doors):
    assert said(doors._request, 20) == ""


def test_an_address_that_reads_files_would_be_told():
    from benchmarks.faults.doors import CANARY, _told

    assert _told([(200, CANARY.encode())]) == "the content of a file was read"
    assert "which file exists" in str(_told([(403, b"private"), (404, b"missing"), (404, b"")]))
    assert _told([(404, b"no private"), (404, b"no missing"), (404, b"")]) is None
    assert access.is_closed("/gradio_api/file=x")
