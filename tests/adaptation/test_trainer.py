"""transformers' Trainer trains adapted models, and its checkpoints load again."""

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from backbones import HF_VIT
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.utils.data import Dataset

import localscale as ls
from localscale.errors import CheckpointError

SIZES = ls.SizeNetwork(width=8, blocks=0)
TINY = {"depths": [1, 1, 1, 1], "hidden_sizes": [8, 8, 8, 8], "decoder_hidden_size": 8, "num_attention_heads": [1] * 4}
BASES = {
    "ViT": lambda: transformers.ViTForImageClassification(transformers.ViTConfig(**HF_VIT)),
    "DINOv2": lambda: transformers.Dinov2ForImageClassification(transformers.Dinov2Config(**HF_VIT)),
    "SegFormer": lambda: transformers.SegformerForSemanticSegmentation(
        transformers.SegformerConfig(num_labels=3, **TINY)
    ),
}


class Squares(Dataset):
    """Random images; their label is whether the mean is positive, for each image or for each pixel."""

    def __init__(self, dense: bool):
        generator = torch.Generator().manual_seed(0)
        self.images = torch.randn(8, 3, 32, 32, generator=generator) + torch.tensor([-0.5, 0.5] * 4).view(8, 1, 1, 1)
        mean = self.images.mean(1) if dense else self.images.mean((1, 2, 3))
        self.labels = (mean > 0).long()

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        return {"pixel_values": self.images[index], "labels": self.labels[index]}


def adapted(kind: str) -> ls.AdaptedModel:
    torch.manual_seed(0)
    mode = "equivariant" if kind == "SegFormer" else "invariant"
    config = ls.DECConfig(knots=6, network=SIZES, mode=mode)
    model = ls.adapt(BASES[kind](), config, input_size=(3, 32, 32))
    ls.learn_sizes(model, Squares(dense=False).images, steps=2, batch_size=8, progress=False)
    return model


def trainer(model: nn.Module, kind: str, folder: Path, **arguments: Any) -> transformers.Trainer:
    data = Squares(dense=kind == "SegFormer")
    settings = {
        "output_dir": str(folder),
        "max_steps": 4,
        "save_steps": 2,
        "per_device_train_batch_size": 4,
        "learning_rate": 1e-2,
        "logging_steps": 1,
        "report_to": "none",
        "disable_tqdm": True,
        "use_cpu": True,
        "dataloader_pin_memory": False,
        "seed": 0,
    }
    processor = transformers.ViTImageProcessor(size={"height": 32, "width": 32}, image_mean=[0.1, 0.2, 0.3])
    return transformers.Trainer(
        model=model,
        args=transformers.TrainingArguments(**settings | arguments),
        train_dataset=data,
        eval_dataset=data,
        processing_class=processor,
    )


@pytest.mark.parametrize("kind", BASES)
def test_trainer_trains_and_its_checkpoints_load(kind: str, tmp_path: Path):
    model = adapted(kind)
    before = {name: tensor.clone() for name, tensor in model.base_state().items()}
    job = trainer(model, kind, tmp_path)
    first = job.evaluate()["eval_loss"]
    job.train()
    assert job.evaluate()["eval_loss"] < first
    assert any(not torch.equal(tensor, before[name]) for name, tensor in model.base_state().items())

    answers = job.predict(job.eval_dataset)
    assert answers.label_ids.shape == job.eval_dataset.labels.shape
    predictions = answers.predictions[0] if isinstance(answers.predictions, tuple) else answers.predictions
    fresh = adapted(kind)
    fresh.load_state_dict(load_file(tmp_path / "checkpoint-4" / "model.safetensors"))
    with torch.no_grad():
        found = fresh.eval()(job.eval_dataset.images).logits
    torch.testing.assert_close(found, torch.as_tensor(predictions), atol=1e-5, rtol=1e-4)
    processor = transformers.AutoImageProcessor.from_pretrained(tmp_path / "checkpoint-4")
    assert list(processor.image_mean) == [0.1, 0.2, 0.3]


@pytest.mark.parametrize("kind", ["ViT", "SegFormer"])
@pytest.mark.parametrize("given", [False, True], ids=["alone", "with a base"])
def test_from_pretrained_loads_what_trainer_writes(kind: str, given: bool, tmp_path: Path):
    """Checkpoints and ``save_model`` write the state_dict, which describes the model; the processor is beside it."""
    model = adapted(kind)
    job = trainer(model, kind, tmp_path)
    job.train()
    job.save_model(str(tmp_path / "model"))
    images = job.eval_dataset.images
    for folder in (tmp_path / "checkpoint-4", tmp_path / "model"):
        again = ls.AdaptedModel.from_pretrained(folder, BASES[kind]() if given else None)
        assert torch.equal(again.eval()(images).logits, model.eval()(images).logits)
        assert again.dec_config == model.dec_config
        assert again.preprocessing.mean == (0.1, 0.2, 0.3)
    again.save_pretrained(tmp_path / "saved")
    last = ls.AdaptedModel.from_pretrained(tmp_path / "saved")
    assert torch.equal(last.eval()(images).logits, model(images).logits)


def test_another_base_is_refused_and_left_alone(tmp_path: Path):
    trainer(adapted("ViT"), "ViT", tmp_path).save_model()
    base = BASES["DINOv2"]()
    names = list(base.state_dict())
    with pytest.raises(CheckpointError, match=r"saved from a transformers.*ViT.* does not fit this Dinov2"):
        ls.AdaptedModel.from_pretrained(tmp_path, base)
    assert list(base.state_dict()) == names


def test_a_description_that_is_none(tmp_path: Path):
    save_file({"_extra_state": torch.tensor([123, 34], dtype=torch.uint8)}, tmp_path / "model.safetensors")
    with pytest.raises(CheckpointError, match="holds a description that cannot be read"):
        ls.AdaptedModel.from_pretrained(tmp_path)


def test_tensors_without_a_description_load(tmp_path: Path):
    """Files of older versions have none."""
    model, other = adapted("ViT"), adapted("ViT")
    state = {name: tensor for name, tensor in model.state_dict().items() if name != "_extra_state"}
    other.load_state_dict(state)
    assert "_extra_state" not in state
    save_file(state, tmp_path / "model.safetensors")
    with pytest.raises(CheckpointError, match=r"no config\.json"):
        ls.AdaptedModel.from_pretrained(tmp_path, BASES["ViT"]())


def test_a_resumed_run_ends_as_one_that_was_not_stopped(tmp_path: Path):
    whole = trainer(adapted("ViT"), "ViT", tmp_path)
    whole.train()
    resumed = trainer(adapted("ViT"), "ViT", tmp_path)
    resumed.train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))
    assert resumed.state.global_step == 4
    torch.testing.assert_close(resumed.model.state_dict(), whole.model.state_dict())


def test_the_best_model_is_loaded_at_the_end(tmp_path: Path):
    settings = {"eval_strategy": "steps", "eval_steps": 2, "load_best_model_at_end": True}
    job = trainer(adapted("ViT"), "ViT", tmp_path, **settings)
    job.train()
    best = load_file(Path(job.state.best_model_checkpoint) / "model.safetensors")
    assert all(torch.equal(tensor, best[name]) for name, tensor in job.model.state_dict().items())


def test_the_model_is_saved_with_its_processor(tmp_path: Path):
    """A model that Trainer trained is saved and loaded as any adapted model."""
    model = adapted("ViT")
    job = trainer(model, "ViT", tmp_path)
    job.train()
    model.save_pretrained(tmp_path / "saved")
    job.processing_class.save_pretrained(tmp_path / "saved")
    torch.manual_seed(0)
    again = ls.AdaptedModel.from_pretrained(tmp_path / "saved", BASES["ViT"]())
    images = job.eval_dataset.images
    assert torch.equal(again.eval()(images).logits, model.eval()(images).logits)
    processor = transformers.AutoImageProcessor.from_pretrained(tmp_path / "saved")
    assert list(processor.image_mean) == [0.1, 0.2, 0.3]


def test_gradient_checkpointing_gives_the_same_losses(tmp_path: Path):
    losses = []
    for number, checkpointing in enumerate((False, True)):
        job = trainer(adapted("ViT"), "ViT", tmp_path / str(number), gradient_checkpointing=checkpointing)
        job.train()
        losses.append([entry["loss"] for entry in job.state.log_history if "loss" in entry])
    assert losses[0] == pytest.approx(losses[1], rel=1e-3)


def test_columns_that_the_model_does_not_take_are_known():
    """Trainer removes columns that ``forward`` does not name."""
    job = trainer(adapted("ViT"), "ViT", Path("unused"))
    job._set_signature_columns_if_needed()
    assert {"pixel_values", "labels"} <= set(job._signature_columns)
    assert job.label_names == ["labels"]
