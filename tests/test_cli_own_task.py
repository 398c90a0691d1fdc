"""A task of a user's own on the command line: train, evaluate and report the example of the docs."""

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from localscale.cli import _how_to_continue, main
from localscale.lab.tasks import TASKS

DOCS = Path(__file__).parent.parent / "docs" / "training.md"
FAST = ("--backbone", "test_vit", "--pretrained", "none", "--precision", "no", "--cpu", "--quiet", "--epochs", "1")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with the example of the docs as ``stripes.py``, of which this process knows nothing."""
    block = next(b for b in re.findall(r"```python\n(.*?)```", DOCS.read_text(encoding="utf-8"), re.S) if "@reg" in b)
    (tmp_path / "stripes.py").write_text(block, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    yield tmp_path
    forget()


def forget() -> None:
    TASKS.pop("stripes", None)
    sys.modules.pop("stripes", None)


def test_it_trains_loads_and_is_reported_from_the_shell(folder: Path, capsys: pytest.CaptureFixture):
    main(["train", "stripes", "--import", "stripes", *FAST, "--method", "none", "--batch-size", "8"])
    assert "accuracy " in capsys.readouterr().out
    run = "runs/stripes-test_vit-none/seed0"
    forget()
    with pytest.raises(SystemExit, match=r"import the module that registers it first \(--import MODULE"):
        main(["evaluate", run, "--cpu"])
    main(["--import=stripes", "evaluate", run, "--cpu"])
    assert "accuracy " in capsys.readouterr().out
    forget()
    pytest.importorskip("matplotlib")
    main(["report", run, "--quiet", "--import", "stripes"])
    assert (folder / run / "report.html").exists()


def test_a_module_that_is_not_there_is_told(folder: Path):
    for given in (["--import", "stripe"], ["--import", "stripes.py"], ["--import"]):
        with pytest.raises(SystemExit, match=r"--import .*expected a module that is installed or in this folder"):
            main(["recipes", *given])


@pytest.mark.parametrize(
    ("line", "error", "said"),
    [("import nowhere", SystemExit, "nowhere"), ("int('three')", ValueError, "invalid literal")],
)
def test_a_fault_inside_the_module_is_not_taken_for_a_wrong_name(
    line: str, error: type[BaseException], said: str, folder: Path
):
    (folder / "faulty.py").write_text(line, encoding="utf-8")
    with pytest.raises(error, match=said) as raised:
        main(["recipes", "--import", "faulty"])
    assert "expected a module that is installed" not in str(raised.value)


def test_the_command_that_continues_imports_the_module():
    for given in (["--import", "stripes", "train", "stripes"], ["--import=stripes", "train", "stripes"]):
        assert _how_to_continue(given).endswith(f"localscale {' '.join(given)} --resume")
