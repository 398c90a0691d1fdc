"""``torch.compile`` traces an adapted model on a GPU as one graph; fake tensors take the place of a GPU."""

from collections.abc import Callable
from typing import Any

import pytest
import timm
import torch
from dec_configs import dec_config
from torch import nn
from torch._dynamo.backends.common import aot_autograd
from torch._subclasses.fake_tensor import FakeTensorMode

import localscale as ls


def on_a_gpu(model: nn.Module) -> nn.Module:
    for module in model.modules():
        for tensors in (module._parameters, module._buffers):
            for name, tensor in tensors.items():
                if tensor is not None:
                    empty = torch.empty(tensor.shape, dtype=tensor.dtype, device="cuda")
                    tensors[name] = nn.Parameter(empty, requires_grad=False) if tensors is module._parameters else empty
    return model


@pytest.mark.parametrize("fixed_steps", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_solve_and_warp_are_operators_of_one_graph(fixed_steps: bool):
    config = dec_config(sites=("input", "blocks.1"), max_steps=3, fixed_steps=fixed_steps)
    model = ls.adapt(timm.create_model("test_vit", num_classes=4, img_size=32), config).eval()
    called: list[str] = []

    def list_operators(graph: torch.fx.GraphModule, inputs: list[Any]) -> Callable[..., Any]:
        for node in graph.graph.nodes:
            called.extend([str(node.target)] if node.op == "call_function" else [])
            device = getattr(node.meta.get("val"), "device", None)
            assert device != torch.device("cpu"), f"{node} is on the CPU, so CUDA graphs could not record the program"
        return graph.forward

    with FakeTensorMode(allow_non_fake_inputs=True), torch.no_grad():
        images = torch.empty(2, 3, 32, 32, device="cuda")
        torch.compile(on_a_gpu(model), backend=aot_autograd(fw_compiler=list_operators), fullgraph=True)(images)
    for operator in ("localscale.solve.default", "localscale.unscale.default"):
        assert called.count(operator) == 2
