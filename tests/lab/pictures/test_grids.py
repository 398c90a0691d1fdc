import torch

import localscale as ls
from localscale.lab.pictures.grids import warp_grid


def test_a_warped_grid_shows_where_the_canonical_form_reads(rng: torch.Generator):
    m = ls.random_map(2, 4, strength=2.0, generator=rng)
    column = torch.linspace(0, 1, 65).expand(65, 65)
    places = torch.stack((column, column.T))[None].expand(2, -1, -1, -1)  # each pixel holds its own position
    canonical = ls.unscale(places, m)
    grid = warp_grid(m, lines=5, points=33)
    assert grid.shape == (2, 10, 33, 2)
    for k in range(5):
        assert torch.allclose(grid[1, 2 * k], canonical[1, :, 16 * k, ::2].T, atol=1e-4)
        assert torch.allclose(grid[1, 2 * k + 1], canonical[1, :, ::2, 16 * k].T, atol=1e-4)
