"""Write real model classes with tiny random weights to disk, in the formats that users have."""

from pathlib import Path

import numpy as np
import torch
from torch import nn

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", ".", "tench", "red", "ball", "##s"]


def write_grounding_dino(folder: Path) -> Path:
    from transformers import (
        BertConfig,
        BertTokenizer,
        GroundingDinoConfig,
        GroundingDinoForObjectDetection,
        GroundingDinoImageProcessor,
        GroundingDinoProcessor,
        SwinConfig,
    )

    folder.mkdir()
    torch.manual_seed(0)
    backbone = SwinConfig(
        image_size=64,
        embed_dim=12,
        depths=[1, 1, 1, 1],
        num_heads=[1, 2, 3, 4],
        window_size=2,
        out_features=["stage2", "stage3", "stage4"],
    )
    text = BertConfig(
        vocab_size=len(WORDS), hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16
    )
    config = GroundingDinoConfig(
        backbone_config=backbone,
        text_config=text,
        num_queries=9,
        encoder_layers=1,
        decoder_layers=2,  # box heads share their weights, so there must be two
        encoder_ffn_dim=16,
        decoder_ffn_dim=16,
        encoder_attention_heads=2,
        decoder_attention_heads=2,
        d_model=32,
        max_text_len=32,
        disable_custom_kernels=True,
    )
    GroundingDinoForObjectDetection(config).save_pretrained(folder)
    vocabulary = {word: number for number, word in enumerate(WORDS)}
    processor = GroundingDinoProcessor(
        GroundingDinoImageProcessor(size={"shortest_edge": 64, "longest_edge": 96}), BertTokenizer(vocab=vocabulary)
    )
    processor.save_pretrained(folder)
    return folder


def write_sam(folder: Path) -> Path:
    from transformers import (
        SamConfig,
        SamImageProcessor,
        SamMaskDecoderConfig,
        SamModel,
        SamProcessor,
        SamPromptEncoderConfig,
        SamVisionConfig,
    )

    torch.manual_seed(0)
    vision = SamVisionConfig(
        hidden_size=16,
        output_channels=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        image_size=64,
        patch_size=8,
        window_size=4,
        global_attn_indexes=[0],
        num_pos_feats=8,
        mlp_dim=16,
    )
    prompt = SamPromptEncoderConfig(hidden_size=16, image_size=64, patch_size=8, mask_input_channels=4)
    decoder = SamMaskDecoderConfig(
        hidden_size=16, mlp_dim=16, num_hidden_layers=1, num_attention_heads=2, iou_head_hidden_dim=16
    )
    config = SamConfig(vision_config=vision, prompt_encoder_config=prompt, mask_decoder_config=decoder)
    SamModel(config).save_pretrained(folder)
    image_processor = SamImageProcessor(
        size={"longest_edge": 64}, pad_size={"height": 64, "width": 64}, mask_size={"longest_edge": 16}
    )
    SamProcessor(image_processor).save_pretrained(folder)
    return folder


class Averages(nn.Module):
    """A model with LaMa's interface (image and mask in [0, 1] → image) that fills with the mean visible colour."""

    def forward(self, image: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        assert image.size(2) % 8 == 0
        assert image.size(3) % 8 == 0
        assert image.max() <= 1
        seen = 1 - mask
        return ((image * seen).sum(dim=(2, 3), keepdim=True) / seen.sum()).expand_as(image)


def write_lama(path: Path) -> Path:
    torch.jit.script(Averages()).save(str(path))
    return path


def write_onnx_encoder(path: Path, *, square: int | None) -> Path:
    """Write an encoder that averages its input, ``(1, 3, S, S)`` or ``(H, W, 3)``."""
    from onnx import TensorProto, helper

    shape = [1, 3, square, square] if square else ["height", "width", 3]
    nodes = [helper.make_node("ReduceMean", ["image"], ["output"], keepdims=1)]
    inputs = [helper.make_tensor_value_info("image", TensorProto.FLOAT, shape)]
    return _write_graph(path, nodes, inputs, ["output"])


def write_onnx_decoder(path: Path, *, names: tuple[str, ...], small: bool = False) -> Path:
    """Write a decoder with the inputs ``names`` whose second mask of three has the best score and is all object.

    With ``small`` its masks have 16×16 pixels instead of the image's size.
    """
    from onnx import TensorProto, helper, numpy_helper

    known = {
        "image_embeddings": None,
        "point_coords": [1, "points", 2],
        "point_labels": [1, "points"],
        "mask_input": [1, 1, 16, 16],
        "has_mask_input": [1],
        "orig_im_size": [2],
        "pixel_values": [1, 3, 8, 8],
    }
    inputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, known[name]) for name in names]
    levels = numpy_helper.from_array(np.array([-1, 1, -1], np.float32).reshape(1, 3, 1, 1), "levels")
    scores = numpy_helper.from_array(np.array([[0.1, 0.9, 0.2]], np.float32), "scores")
    front = numpy_helper.from_array(np.array([1, 3], np.int64), "front")
    own = numpy_helper.from_array(np.array([16, 16], np.int64), "own")
    nodes = [
        helper.make_node("Identity", ["scores"], ["iou_predictions"]),
        helper.make_node("Identity", ["own"], ["size"])
        if small
        else helper.make_node("Cast", ["orig_im_size"], ["size"], to=TensorProto.INT64),
        helper.make_node("Concat", ["front", "size"], ["shape"], axis=0),
        helper.make_node("Expand", ["levels", "shape"], ["masks"]),
    ]
    return _write_graph(path, nodes, inputs, ["masks", "iou_predictions"], [levels, scores, front, own])


def _write_graph(path: Path, nodes: list, inputs: list, outputs: list[str], constants: list | None = None) -> Path:
    import onnx
    from onnx import TensorProto, helper

    results = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs]
    graph = helper.make_graph(nodes, "tiny", inputs, results, constants or [])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    onnx.save(model, str(path))
    return path
