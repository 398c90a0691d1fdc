"""Our head against transformers' DPT: the same weights give the same scores, and the parameters are the same."""

import re

import torch
import transformers
from tiny_segmenters import randomise_statistics
from torch import Tensor

from localscale.heads import DPTHead

SIZES = {"num_hidden_layers": 4, "num_attention_heads": 2, "patch_size": 16, "backbone_out_indices": [0, 1, 2, 3]}
SEGMENTATION = {"readout_type": "ignore", "use_batch_norm_in_fusion_residual": True, "use_auxiliary_head": False}
UNUSED = "neck.fusion_stage.layers.0.residual_layer1."  # created, but never run
THEIRS_TO_OURS = {
    r"^neck\.reassemble_stage\.layers\.(\d)\.projection": r"reassemble.\1.project",
    r"^neck\.reassemble_stage\.layers\.(\d)\.resize": r"reassemble.\1.resample",
    r"^neck\.convs\.(\d)": r"reassemble.\1.mix",
    r"^neck\.fusion_stage\.layers\.(\d)\.projection": r"fuse.\1.project",
    r"^neck\.fusion_stage\.layers\.(\d)\.residual_layer1": r"fuse.\1.enter",
    r"^neck\.fusion_stage\.layers\.(\d)\.residual_layer2": r"fuse.\1.refine",
    r"\.convolution1\.": ".convolutions.1.",
    r"\.batch_norm1\.": ".convolutions.2.",
    r"\.convolution2\.": ".convolutions.4.",
    r"\.batch_norm2\.": ".convolutions.5.",
    r"^head\.head\.(\d)": r"refine.\1",
    r"^refine\.4": "classifier",
}


def theirs(channels: int, neck: tuple[int, ...], width: int, classes: int) -> transformers.DPTForSemanticSegmentation:
    config = transformers.DPTConfig(
        hidden_size=channels,
        neck_hidden_sizes=list(neck),
        fusion_hidden_size=width,
        num_labels=classes,
        **SIZES,
        **SEGMENTATION,
    )
    torch.manual_seed(0)
    return transformers.DPTForSemanticSegmentation(config).eval()


def our_name(name: str) -> str:
    for pattern, ours in THEIRS_TO_OURS.items():
        name = re.sub(pattern, ours, name)
    # transformers numbers the fusions from the deepest, we from the finest
    return re.sub(r"^fuse\.(\d)", lambda found: f"fuse.{3 - int(found[1])}", name)


def head_tensors(model: torch.nn.Module) -> dict[str, Tensor]:
    state = {k: v for k, v in model.state_dict().items() if k.startswith(("neck.", "head."))}
    return {name: tensor for name, tensor in state.items() if not name.startswith(UNUSED)}


def test_the_same_weights_give_the_same_scores():
    reference = theirs(32, (4, 8, 16, 32), 16, 5)
    with torch.no_grad():
        for parameter in reference.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    randomise_statistics(reference)
    ours = DPTHead((32,) * 4, (16,) * 4, 5, width=16).eval()
    ours.load_state_dict({our_name(name): tensor for name, tensor in head_tensors(reference).items()})
    tokens = [torch.randn(2, 1 + 4 * 6, 32) for _ in range(4)]
    maps = [t[:, 1:].transpose(1, 2).unflatten(2, (4, 6)) for t in tokens]
    with torch.no_grad():
        expected = reference.head(reference.neck(tokens, 4, 6))
        scores = ours(maps, (64, 96))
    assert expected.std() > 0.01
    torch.testing.assert_close(scores, expected, atol=1e-5, rtol=1e-4)


def test_dpt_base_has_the_same_parameters():
    with torch.device("meta"):
        reference = theirs(768, (96, 192, 384, 768), 256, 150)
        ours = DPTHead((768,) * 4, (16,) * 4, 150)
    expected = {our_name(name): tensor.shape for name, tensor in head_tensors(reference).items()}
    assert {name: tensor.shape for name, tensor in ours.state_dict().items()} == expected
    unused = sum(p.numel() for n, p in reference.named_parameters() if n.startswith(UNUSED))
    their_count = sum(p.numel() for n, p in reference.named_parameters() if n.startswith(("neck.", "head.")))
    assert sum(p.numel() for p in ours.parameters()) == their_count - unused
