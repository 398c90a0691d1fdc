"""Locally scaled MNIST: an image depends on its index alone and is rendered exactly."""

import multiprocessing
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image
from shared import SHARED
from torch import Tensor
from torch.utils.data import DataLoader
from torchvision.transforms.functional import pil_to_tensor

from localscale.errors import ConfigError, DataError, ShapeError
from localscale.lab.data.mnist import Digits, LocallyScaledMNIST
from localscale.lab.data.mnist.render import ink_centres, render
from localscale.lab.data.mnist.triples import LAYOUTS, DigitsByClass, DigitTriples, draw_triples


@pytest.fixture(scope="module")
def digits() -> Digits:
    """Rectangles of ink of random sizes and places; each class has its own brightness."""
    generator = torch.Generator().manual_seed(0)
    images = torch.zeros(200, 28, 28, dtype=torch.uint8)
    labels = torch.arange(200) % 10
    for image, label in zip(images, labels, strict=True):
        top, left = torch.randint(1, 7, (2,), generator=generator).tolist()
        height, width = torch.randint(8, 21, (2,), generator=generator).tolist()
        image[top : top + height, left : left + width] = 100 + 15 * int(label)
    return Digits(images, labels, "made up")


def make(digits: Digits, **options: object) -> LocallyScaledMNIST:
    return LocallyScaledMNIST(digits=digits, **{"count": 2000, **options})  # type: ignore[arg-type]


def test_every_thousand_indices_contain_every_number(digits: Digits) -> None:
    labels = make(digits, count=3000).renderer().triples(torch.arange(3000)).labels
    for block in labels.view(3, 1000):
        assert block.sort().values.tolist() == list(range(1000))
    assert labels[:1000].tolist() == labels[1000:2000].tolist()


def test_the_label_is_the_number_of_the_digits(digits: Digits) -> None:
    triples = make(digits).renderer().triples(torch.arange(1000))
    read = digits.labels[triples.digits]
    assert torch.equal(read[:, 0] * 100 + read[:, 1] * 10 + read[:, 2], triples.labels)


def test_layouts_factors_and_digits_are_spread_evenly(digits: Digits) -> None:
    triples = make(digits, count=30_000).renderer().triples(torch.arange(30_000))
    assert torch.bincount(triples.layouts).tolist() == pytest.approx([10_000] * 3, rel=0.05)
    assert 0.4 <= float(triples.factors.min()) < 0.401
    assert 1.999 < float(triples.factors.max()) < 2.0
    assert triples.factors.mean(0).tolist() == pytest.approx([1.2] * 3, abs=0.01)
    used = torch.bincount(triples.digits.flatten(), minlength=200)
    assert int(used.min()) > 300  # of 450 expected


def test_splits_and_seeds_differ_and_variants_share_digits(digits: Digits) -> None:
    by_class, index = DigitsByClass.of(digits.labels), torch.arange(100)

    def draw(seed: int = 0, split: str = "train", variant: int = 0) -> DigitTriples:
        return draw_triples(index, by_class, seed=seed, split=split, factors=(0.4, 2.0), variant=variant)

    assert not torch.equal(draw().digits, draw(seed=1).digits)
    assert not torch.equal(draw().digits, draw(split="test").digits)
    first, second = draw(variant=1), draw(variant=2)
    assert torch.equal(first.digits, second.digits)
    assert torch.equal(first.layouts, second.layouts)
    assert not torch.isclose(first.factors, second.factors).any()


def test_another_bracket_shows_the_same_digits_at_other_sizes(digits: Digits) -> None:
    small, large = make(digits, factors=(0.4, 1.0)).triple(5), make(digits, factors=(2.0, 3.0)).triple(5)
    assert torch.equal(small.digits, large.digits)
    assert torch.allclose((small.factors - 0.4) / 0.6, large.factors - 2)


def border(images: Tensor) -> float:
    """Return the brightest pixel on the frame."""
    return float(torch.maximum(images[..., [0, -1], :].max(), images[..., [0, -1]].max()))


@pytest.mark.parametrize("factors", [(0.4, 2.0), (2.0, 3.0)])
def test_nothing_is_cropped_and_ink_grows_with_the_square(digits: Digits, factors: tuple[float, float]) -> None:
    dataset = make(digits, factors=factors)
    images, _ = dataset.renderer(dtype=torch.float64)(torch.arange(100))
    triples = dataset.renderer().triples(torch.arange(100))
    assert border(images) == 0
    ink = digits.images[triples.digits].double().sum((-1, -2)) / 255
    expected = (ink * triples.factors**2).sum(1)
    assert torch.allclose(images.sum((1, 2, 3)), expected, rtol=0.03)


@pytest.mark.parametrize("size", [32, 100, 224])
def test_the_largest_accepted_factor_crops_nothing(digits: Digits, size: int) -> None:
    with pytest.raises(ConfigError) as refused:
        make(digits, factors=(9.0, 9.0), image_size=size)
    largest = float(str(refused.value).split()[-1]) - 0.005
    dataset = make(digits, factors=(largest, largest), image_size=size)
    images, _ = dataset.renderer(dtype=torch.float64)(torch.arange(100))
    assert border(images) == 0


def test_gaps_in_the_ink_count_as_ink(digits: Digits) -> None:
    images = digits.images.clone()
    images[:, 0, 0] = images[:, 27, 27] = 255
    with pytest.raises(ConfigError, match=r"would be cropped; the largest that fits is 2\.56"):
        make(Digits(images, digits.labels, "made up"), factors=(1.0, 3.0))


def test_digits_are_centred_in_their_cells(digits: Digits) -> None:
    """In each third of the layout the ink's bounding box is centred, so no digit reaches another cell."""
    dataset = make(digits, factors=(2.5, 3.0))
    for index in range(30):
        triple = dataset.triple(index)
        ink = np.asarray(dataset.render(triple)) > 0
        for x, y in list(LAYOUTS.values())[int(triple.layouts)]:
            column, row = x * 223, y * 223
            cell = ink[max(0, int(row) - 37) : int(row) + 38, max(0, int(column) - 37) : int(column) + 38]
            rows, columns = np.flatnonzero(cell.any(1)), np.flatnonzero(cell.any(0))
            assert (rows[0] + rows[-1]) / 2 + max(0, int(row) - 37) == pytest.approx(row, abs=1)
            assert (columns[0] + columns[-1]) / 2 + max(0, int(column) - 37) == pytest.approx(column, abs=1)


@pytest.mark.parametrize("side", [11, 14, 21, 28, 84])
def test_resizing_agrees_with_torch(side: int, rng: torch.Generator) -> None:
    """The middle digit of a row, at a factor that gives an integer size, equals anti-aliased interpolation.

    At the edge of the digit's frame they differ on purpose, because our pixels beyond it are black.
    """
    images = torch.zeros(1, 28, 28, dtype=torch.uint8)
    images[:, 5:23, 5:23] = torch.randint(256, (18, 18), generator=rng)
    digit = images[0].double() / 255
    factor = side / 28
    triple = DigitTriples(
        torch.tensor([0]),
        torch.tensor([[0, 0, 0]]),
        torch.tensor([0]),
        torch.tensor([[0.4, factor, 0.4]], dtype=torch.float64),
    )
    # The centre of 28 pixels lies between two pixels, as that of 224 does. An odd side moves it by half a pixel.
    centres = torch.full((1, 2), 13.5) - (0.5 / factor if side % 2 else 0)
    ours = render(images, centres, triple, size=224, smallest=0.4, dtype=torch.float64)[0, 0]
    peer = F.interpolate(digit[None, None], size=(side, side), mode="bilinear", antialias=True)[0, 0]
    start = 112 - side // 2
    middle = ours[start : start + side, start : start + side]
    assert torch.allclose(middle, peer, atol=1e-6)


def test_other_sizes_show_the_same_picture(digits: Digits) -> None:
    large, _ = make(digits, factors=(1.5, 2.0)).renderer()(torch.arange(8))
    small, _ = make(digits, factors=(1.5, 2.0), image_size=112).renderer()(torch.arange(8))
    shrunk = F.interpolate(large, size=(112, 112), mode="bilinear", antialias=True)
    assert float((small - shrunk).abs().mean()) < 0.01


def test_batches_and_single_images_agree(digits: Digits) -> None:
    dataset = make(digits)
    index = torch.tensor([5, 1999, 0, 77])
    images, labels = dataset.renderer()(index)
    for image, label, n in zip(images, labels, index, strict=True):
        single, single_label = dataset[int(n)]
        assert single_label == int(label)
        assert float((image * 255 - pil_to_tensor(single)).abs().max()) <= 0.5 + 1e-3
    exact, _ = dataset.renderer(dtype=torch.float64)(index)
    assert torch.allclose(images.double(), exact, atol=1e-5)
    variant, _ = dataset.renderer()(index, 2)
    single, _ = dataset.variant(77, 2)
    assert float((variant[3] * 255 - pil_to_tensor(single)).abs().max()) <= 0.5 + 1e-3


def test_images_do_not_depend_on_workers_and_order(digits: Digits) -> None:
    dataset = make(digits, count=12, transform=pil_to_tensor)
    alone = [dataset[n] for n in reversed(range(12))][::-1]
    context = multiprocessing.get_context("fork")
    loader = DataLoader(dataset, batch_size=3, num_workers=2, multiprocessing_context=context)
    images, labels = (torch.cat(parts) for parts in zip(*loader, strict=True))
    assert torch.equal(images, torch.stack([image for image, _ in alone]))
    assert labels.tolist() == [label for _, label in alone]


def test_transforms_and_indices_work_as_in_torchvision(digits: Digits) -> None:
    dataset = make(digits, transform=pil_to_tensor, target_transform=lambda label: label % 10)
    image, label = dataset[3]
    assert image.shape == (1, 224, 224)
    assert label == make(digits)[3][1] % 10
    assert isinstance(make(digits)[3][0], Image.Image)
    assert torch.equal(dataset[-1][0], dataset[1999][0])
    with pytest.raises(IndexError, match="index 2000 of a dataset of 2000"):
        dataset[2000]


def test_default_counts_are_the_papers(digits: Digits) -> None:
    assert len(LocallyScaledMNIST(digits=digits)) == 6_000
    assert len(LocallyScaledMNIST(digits=digits, train=False)) == 50_000


def test_ink_centres_are_the_centres_of_the_bounding_boxes() -> None:
    images = torch.zeros(2, 28, 28, dtype=torch.uint8)
    images[0, 4:10, 20:27] = 9
    images[1, 27, 0] = 1
    assert ink_centres(images).tolist() == [[23.0, 6.5], [0.0, 27.0]]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"factors": (1e-9, 1e-9)}, r"a digit at factor 1e-09 would be smaller than half a pixel; .* least 0\.0179"),
        ({"factors": (0.4, 3.6)}, r"a digit at factor 3\.6 would be cropped; the largest that fits is 3\.54"),
        ({"factors": (0.4, 3.37), "image_size": 32}, r"a digit at factor 3\.37 would be cropped"),
        ({"factors": (2.0, 1.0)}, "expected two positive numbers, the smaller first"),
        ({"factors": (float("nan"), 1.0)}, "expected two positive numbers"),
        ({"count": 0}, "count is 0; expected at least 1"),
        ({"image_size": 16}, "image_size is 16; expected at least 32"),
    ],
)
def test_wrong_options(options: dict[str, object], message: str, digits: Digits) -> None:
    with pytest.raises(ConfigError, match=message):
        make(digits, **options)


def test_wrong_batches(digits: Digits) -> None:
    draw = make(digits).renderer()
    assert torch.equal(draw([-1])[0], draw(torch.tensor([1999]))[0])  # type: ignore[arg-type]
    with pytest.raises(ShapeError, match=r"shape \(2,\) and torch\.float32; expected \(B,\) of integers"):
        draw(torch.tensor([0.5, 1.0]))
    with pytest.raises(ConfigError, match="variant is -1"):
        draw(torch.tensor([0]), -1)


@pytest.mark.parametrize("noise", [-1e-13, 1e-13])
def test_rounding_is_stable_at_integer_factors(noise: float, digits: Digits, monkeypatch: pytest.MonkeyPatch) -> None:
    """At factor 2 many pixels lie halfway between two levels; tiny numerical noise must not change them."""
    dataset = make(digits, factors=(2.0, 2.0))
    drawn = [np.asarray(dataset[n][0]) for n in range(20)]
    monkeypatch.setattr("localscale.lab.data.mnist.dataset.render", lambda *a, **k: render(*a, **k) + noise)
    assert all(np.array_equal(np.asarray(dataset[n][0]), image) for n, image in enumerate(drawn))


def test_a_written_dataset_is_not_a_root(digits: Digits, tmp_path: Path) -> None:
    (tmp_path / "dataset.json").write_text("{}")
    with pytest.raises(DataError, match=r"is a written dataset; read it with lab\.data\.LabelledImages"):
        LocallyScaledMNIST(tmp_path)
    assert "digits: made up" in repr(make(digits))


def test_wrong_variants_and_missing_classes(digits: Digits) -> None:
    with pytest.raises(ConfigError, match="variant is -1"):
        make(digits).variant(0, -1)
    with pytest.raises(DataError, match="lack a class"):
        make(Digits(digits.images, digits.labels.clamp(max=8), "made up"))


def test_real_digits_fit_at_three_times_their_size() -> None:
    folder = SHARED / "mnist"
    if not folder.is_dir():
        pytest.skip("needs MNIST in ../shared/data/mnist")
    for train in (True, False):
        dataset = LocallyScaledMNIST(folder, train=train, factors=(2.0, 3.0))
        assert border(dataset.renderer()(torch.arange(64))[0]) == 0
