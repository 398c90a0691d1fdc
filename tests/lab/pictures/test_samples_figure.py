"""Samples of written datasets: which images, under which names, with which factors."""

from pathlib import Path

import numpy as np
import pytest

from localscale.cli import main
from localscale.errors import ShapeError
from localscale.lab.data import generate
from localscale.lab.data.generation import Job, Sample, Stage
from localscale.lab.data.images import encode_image
from localscale.lab.pictures import draw_samples
from localscale.lab.pictures.samples import read_samples

RECORDS = {
    "mnist": {"label": 7, "scales": [0.4, 1.0, 2.0]},
    "objects": {"objects": [{"class": "Mug", "scale": 1.0}, {"class": "A_very_long_name_of_a_thing", "scale": 0.5}]},
    "imagenet": {"label": 3, "class_name": "tiger shark", "scale": 0.7},
}


def write(kind: str, members: int, out: Path) -> Path:
    def samples(index: int) -> list[Sample]:
        files = [encode_image(np.full((32, 48, 3), 40 * index + k, np.uint8)) for k in range(members)]
        record = {"group": index, **RECORDS[kind]}
        return [Sample(f"{index}-{k}", {"png": file}, record) for k, file in enumerate(files)]

    generate(Job(kind, 3, {}, [Stage("make", lambda: samples)]), out)
    return out


def test_a_block_for_each_dataset(tmp_path: Path):
    read = [read_samples(str(write(kind, 7, tmp_path / kind)), groups=2, columns=4) for kind in RECORDS]
    axis = draw_samples(read).axes[0]
    levels = [int(np.asarray(image.get_array())[0, 0, 0]) for image in axis.images]
    assert levels == [0, 2, 4, 6, 40, 42, 44, 46] * 3, "both ends and what lies between"
    words = [text.get_text() for text in axis.texts]
    for title in ("locally scaled MNIST", "locally scaled objects", "locally scaled ImageNet"):
        assert words.count(title) == 1
    assert words.count("007") == words.count("tiger shark") == words.count("Mug\nA very long name of a…") == 2
    for caption in ("×0.40 ×1.00 ×2.00", "×1.00 ×0.50", "×0.7"):
        assert words.count(caption) == 8


def test_images_keep_their_shape_and_stay_on_the_page(tmp_path: Path):
    figure = draw_samples([read_samples(str(write("imagenet", 2, tmp_path / "a")), groups=3, columns=4)])
    width, height = figure.get_size_inches()
    for image in figure.axes[0].images:
        left, right, low, high = image.get_extent()
        assert (right - left) / (high - low) == pytest.approx(48 / 32)
        assert 0 < left < right < width
        assert 0 < low < high < height


def test_groups_of_one_image_are_named_under_each(tmp_path: Path):
    name, rows = read_samples(f"my numbers={write('mnist', 1, tmp_path / 'a')}", groups=1, columns=3)
    assert (name, len(rows), len(rows[0])) == ("my numbers", 1, 3)
    rows[0][1].captions[0] = ("008", "")
    words = [text.get_text() for text in draw_samples([(name, rows)]).axes[0].texts]
    assert words == ["my numbers", *(f"00{n}: ×0.40 ×1.00 ×2.00" for n in (7, 8, 7))]


def test_a_folder_with_an_equals_sign_is_a_folder(tmp_path: Path):
    assert read_samples(str(write("mnist", 2, tmp_path / "a=b")), groups=1, columns=2)[0] == "locally scaled MNIST"


def test_samples_from_the_command_line(tmp_path: Path):
    folders = [str(write(kind, 2, tmp_path / kind)) for kind in ("mnist", "objects")]
    main(["figure", "samples", "--data", *folders, "--out", str(tmp_path / "a.svg")])
    assert (tmp_path / "a.svg").stat().st_size > 2_000


def test_bad_input_is_a_sentence(tmp_path: Path):
    folder = str(write("mnist", 2, tmp_path / "mnist"))
    with pytest.raises(SystemExit, match=r"no dataset\.json in .*gone; expected a folder written by"):
        main(["figure", "samples", "--data", folder, str(tmp_path / "gone")])
    with pytest.raises(SystemExit, match="groups and columns are 2 and 0; expected at least 1 each"):
        main(["figure", "samples", "--data", folder, "--columns", "0"])
    with pytest.raises(SystemExit, match=r"ends in nothing; expected \.png, \.pdf, \.svg"):
        main(["figure", "samples", "--data", folder, "--out", str(tmp_path / "picture")])
    with pytest.raises(ShapeError, match="there is no image to draw"):
        draw_samples([])
