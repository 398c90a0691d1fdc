"""Looks through a map: detail where it enlarges, no aliasing where it shrinks."""

import torch

import localscale as ls
from localscale.canonicalizer.looks import Looks, pyramid
from localscale.conventions import lattice, resize


def looks_at(source: torch.Tensor, side: int) -> Looks:
    return Looks(pyramid(source, (side, side)), (side, side))


def test_through_the_identity_a_look_is_the_resized_source():
    ramp = torch.linspace(0, 1, 64).expand(1, 1, 64, 64)
    found = looks_at(ramp, 17)(ls.identity_map(1))
    torch.testing.assert_close(found, resize(ramp, 17, 17), atol=1e-5, rtol=0)


def test_what_is_enlarged_gains_detail_from_the_source():
    """Stripes of one pixel are grey in a look of half the pixels, and stripes in a look at half of the image."""
    stripes = (torch.arange(65) % 2).float().expand(1, 1, 65, 65)
    looks = looks_at(stripes, 33)
    pixels = lattice(33, 33, dtype=torch.float32)[None]
    assert looks.at(pixels)[..., 2:-2].std() < 0.05
    assert looks.at(pixels / 2)[..., 2:-2].std() > 0.4


def test_what_is_shrunk_does_not_alias():
    noise = torch.randn(1, 1, 129, 129, generator=torch.Generator().manual_seed(0))
    m = ls.map_from_scales(torch.tensor([[[2.5, 0.4], [2.5, 0.4]]]), torch.ones(1, 2, 2), knots=3)
    found = looks_at(noise, 33)(m)
    assert found[..., :8].std() < 0.7 * found[..., -8:].std()


def test_some_of_the_images_look_as_they_do_among_all():
    source, m = torch.rand(3, 2, 40, 24), ls.random_map(3)
    looks, some = Looks(pyramid(source, (20, 12)), (20, 12)), slice(1, 3)
    torch.testing.assert_close(looks.among(some)(m[some]), looks(m)[some], atol=1e-6, rtol=0)
