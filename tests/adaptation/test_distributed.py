"""Gradients of two processes are those of one process with the whole batch."""

from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from localscale import AdaptedModel, Anderson, ConvNetwork, DECConfig, adapt

WORLD = 2
IMAGES = torch.rand(4, 3, 32, 32, generator=torch.Generator().manual_seed(0))


def made() -> AdaptedModel:
    torch.manual_seed(0)
    base = nn.Sequential(nn.Conv2d(3, 8, 4, stride=4), nn.Conv2d(8, 8, 3, padding=1), nn.Flatten(), nn.Linear(512, 5))
    solver = Anderson(max_steps=40, tolerance=1e-5)
    config = DECConfig.paper(sites=("input", "1"), knots=4, network=ConvNetwork((8, 8), 16), solver=solver)
    model = adapt(base, config, input_size=(3, 32, 32))
    for canonicalizer in model.canonicalizers.values():
        for head in (canonicalizer.network.to_x, canonicalizer.network.to_y):
            nn.init.normal_(head.weight, std=0.5)
    return model


def loss(model: nn.Module, images: Tensor) -> Tensor:
    return model(images).square().sum(dim=1).mean()


def work(rank: int, folder: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=WORLD)
    try:
        model = DistributedDataParallel(made(), find_unused_parameters=False)
        share = IMAGES.chunk(WORLD)[rank]
        loss(model, share).backward()
        gradients = {name: p.grad.clone() for name, p in model.module.named_parameters() if p.grad is not None}
        save_file(gradients, Path(folder) / f"{rank}.safetensors")
        loss(model, share).backward()  # an unused parameter would stop the second step
    finally:
        dist.destroy_process_group()


@pytest.mark.slow
def test_gradients_equal_those_of_the_joined_batch(tmp_path: Path, monkeypatch):
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    model = made()
    loss(model, IMAGES).backward()
    expected = {name: parameter.grad for name, parameter in model.named_parameters()}
    torch.multiprocessing.spawn(work, args=(str(tmp_path),), nprocs=WORLD)
    shares = [load_file(tmp_path / f"{rank}.safetensors") for rank in range(WORLD)]
    for name, gradient in expected.items():
        for share in shares:
            torch.testing.assert_close(share[name], gradient, atol=1e-5, rtol=1e-4)
    assert set(shares[0]) == set(expected)
    assert all(expected[name].abs().max() > 1e-5 for name in expected if "canonicalizer" in name and "bias" not in name)
