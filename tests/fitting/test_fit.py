"""``fit``: it learns, keeps the best epoch, stops, resumes, and warns where nothing could be learned."""

import json
import logging
import os
import signal
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import localscale as ls
from localscale.checkpoints import read_state
from localscale.errors import CheckpointError, ConfigError, DataError

SIZE = (3, 32, 32)


class Colours(nn.Module):
    """A classifier by mean colour, small enough to learn in a second."""

    def __init__(self, classes: int = 3) -> None:
        super().__init__()
        self.norm, self.fc = nn.BatchNorm1d(3), nn.Linear(3, classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.norm(x.mean(dim=(2, 3))))


class Pixels(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Conv2d(3, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(x)


def photographs(count: int = 12, seed: int = 0) -> tuple[Tensor, Tensor]:
    labels = torch.arange(count) % 3
    images = 0.2 * torch.rand(count, *SIZE, generator=torch.Generator().manual_seed(seed))
    images[torch.arange(count), labels] += 0.5
    return images, labels


def loader(count: int = 12, **settings: Any) -> DataLoader:
    return DataLoader(TensorDataset(*photographs(count)), batch_size=4, **settings)


def adapted(trust: float = 0.5, **settings: Any) -> ls.AdaptedModel:
    torch.manual_seed(0)
    model = ls.adapt(Colours(), ls.DECConfig(**settings), input_size=SIZE)
    if isinstance(model.dec_config.network, ls.SizeNetwork):
        model.size_canonicalizer().network.trust.fill_(trust)
    return model


def fit(model: nn.Module, *data: Any, **settings: Any) -> ls.Fitted:
    fast = {"epochs": 2, "learning_rate": 0.05, "cpu": True, "progress": False} | settings
    return ls.fit(model, *data, **fast)


def same(a: dict[str, Tensor], b: dict[str, Tensor]) -> bool:
    return all(torch.equal(a[name], b[name]) for name in a)


def copied(model: nn.Module) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


def test_it_learns_and_holds_the_size_network_still():
    model = adapted()
    sizes = copied(model.size_canonicalizer())
    found = fit(model, loader(), loader(), epochs=8)
    assert found.history[-1].metrics["accuracy"] == 1
    assert found.history[0].loss > found.history[-1].loss
    assert set(found.history[0].metrics) == {"loss", "accuracy", "invariance_error"}
    assert found.ended == "all epochs are done"
    assert same(sizes, copied(model.size_canonicalizer()))
    assert all(p.requires_grad for p in model.size_canonicalizer().parameters())


def test_a_size_weight_teaches_the_size_network_along():
    model = adapted(trust=0.0, detached=("input",))
    sizes = copied(model.size_canonicalizer())
    fit(model, loader(), size_weight=1.0)
    assert not same(sizes, copied(model.size_canonicalizer()))
    assert float(model.size_canonicalizer().network.trust) > 0


class Features(nn.Module):
    """A classifier with a module in the middle, whose features can be canonicalized."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.middle, self.fc = nn.Conv2d(3, 8, 1), nn.Conv2d(8, 8, 1), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.middle(self.stem(x)).mean(dim=(2, 3)))


def test_a_size_weight_teaches_size_networks_of_latent_sites():
    model = ls.adapt(Features(), ls.DECConfig(sites=("middle",), detached=("middle",)), input_size=SIZE)
    canonicalizer = model.canonicalizers["middle"].requires_grad_(False)
    before = copied(canonicalizer)
    fit(model, loader(), size_weight=1.0, epochs=1)  # warnings are errors: this network is taught
    assert not torch.equal(before["network.head.weight"], canonicalizer.network.head.weight)
    assert not any(parameter.requires_grad for parameter in canonicalizer.parameters()), "as they were"


def test_dictionaries_masks_and_models_without_canonicalizers():
    images, labels = photographs()
    fit(Colours(), [{"pixel_values": images, "labels": labels}])
    masks = (images[:, 0] > 0.5).long()
    found = fit(Pixels(), [(images, masks)], [(images, masks)], epochs=30, monitor="equivariance_error")
    assert found.history[-1].metrics["accuracy"] > 0.9
    assert "equivariance_error" in found.best.metrics


def test_the_model_has_the_weights_of_the_best_epoch(tmp_path: Path):
    model = adapted()
    seen: list[dict[str, Tensor]] = []
    found = fit(model, loader(), loader(), epochs=4, callbacks=[lambda _: seen.append(copied(model))], out=tmp_path)
    assert same(copied(model), seen[found.best.epoch - 1])
    best = max(report.metrics["accuracy"] for report in found.history)
    assert found.best.metrics["accuracy"] == best
    torch.manual_seed(0)
    again = ls.AdaptedModel.from_pretrained(tmp_path, Colours()).eval()
    images = photographs(seed=5)[0]
    assert torch.equal(again(images), model.eval()(images))
    card = (tmp_path / "README.md").read_text(encoding="utf-8")
    for name, key in (("accuracy", "accuracy"), ("InvE", "invariance_error")):
        assert f"| validation.{name} | {found.best.metrics[key]:.4g} |" in card
    assert f"| epoch | {found.best.epoch} |" in card
    lines = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    assert [line["epoch"] for line in lines] == [1, 2, 3, 4]


def test_patience_and_callbacks_end_it():
    still = nn.Sequential(nn.Flatten(), nn.Linear(3 * 32 * 32, 3))
    found = fit(still, loader(), loader(), epochs=9, learning_rate=0.0, patience=2)
    assert (len(found.history), found.best.epoch, found.ended) == (3, 1, "no better epoch for 2 epochs")
    found = fit(Colours(), loader(), epochs=9, callbacks=[lambda report: report.epoch == 2])
    assert (len(found.history), found.ended) == (2, "a callback ended it")


class Interrupted:
    """A loader during whose ``number``-th batch the user presses Ctrl-C."""

    def __init__(self, number: int) -> None:
        self.left, self.batches = number, list(loader())

    def __len__(self) -> int:
        return len(self.batches)

    def __iter__(self) -> Any:
        for batch in self.batches:
            self.left -= 1
            if self.left == 0:
                raise KeyboardInterrupt
            yield batch


def test_after_ctrl_c_the_same_call_goes_on_as_if_nothing_had_happened(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    whole = adapted()
    expected = fit(whole, list(loader()), list(loader()), epochs=3)
    stopped = adapted()
    with pytest.raises(KeyboardInterrupt):
        fit(stopped, Interrupted(6), list(loader()), epochs=3, out=tmp_path / "run")
    assert f"stopped at step 5 of 9, in epoch 2; call ls.fit again with the same settings and out='{tmp_path}" in (
        caplog.text
    )
    resumed = adapted()
    found = fit(resumed, list(loader()), list(loader()), epochs=3, out=tmp_path / "run")
    assert [report.metrics for report in found.history] == [report.metrics for report in expected.history]
    assert same(copied(resumed), copied(whole))


class Watched:
    """The images that a model is trained on; in the middle of the ``number``-th step the user presses Ctrl-C."""

    def __init__(self, model: nn.Module, number: int = 0) -> None:
        self.given: list[Tensor] = []
        self.number = number
        model.register_forward_pre_hook(self.see)

    def see(self, module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        if module.training:
            self.given.append(inputs[0].mean(dim=(1, 2, 3)))
            if len(self.given) == self.number:
                os.kill(os.getpid(), signal.SIGINT)


def noisy() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Dropout2d(0.2), Colours())


@pytest.mark.parametrize("own", [False, True], ids=["default generator", "own generator"])
@pytest.mark.parametrize("number", [2, 5, 6])
def test_the_rest_of_a_shuffled_epoch_comes_in_the_same_order(own: bool, number: int, tmp_path: Path):
    """Ctrl-C inside a step waits for its end; order and dropout go on as in a run that was not stopped."""

    def shuffled(seed: int = 3) -> DataLoader:
        torch.manual_seed(seed)
        return loader(12, shuffle=True, generator=torch.Generator().manual_seed(seed) if own else None)

    whole, val = noisy(), loader()
    seen = Watched(whole)
    expected = fit(whole, shuffled(), val, epochs=3)
    stopped, resumed = noisy(), noisy()
    before = Watched(stopped, number)
    with pytest.raises(KeyboardInterrupt):
        fit(stopped, shuffled(), val, epochs=3, out=tmp_path)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    after = Watched(resumed)
    found = fit(resumed, shuffled(seed=8), val, epochs=3, out=tmp_path)  # another process has other random states
    given = before.given + after.given
    assert len(given) == len(seen.given) == 9
    assert all(torch.equal(a, b) for a, b in zip(given, seen.given, strict=True))
    assert [(r.loss, r.metrics) for r in found.history] == [(r.loss, r.metrics) for r in expected.history]
    assert same(copied(resumed), copied(whole))


@pytest.mark.parametrize("epoch", [1, 2])
def test_ctrl_c_in_a_validation_repeats_the_validation_alone(
    epoch: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    val = list(loader())
    whole, stopped, resumed = adapted(), adapted(), adapted()
    expected = fit(whole, list(loader()), val)
    with pytest.raises(KeyboardInterrupt):
        fit(stopped, list(loader()), Interrupted(3 * epoch), out=tmp_path)
    assert f"stopped at step {3 * epoch} of 6, before the validation of epoch {epoch}; call" in caplog.text
    found = fit(resumed, list(loader()), val, out=tmp_path)
    assert [report.epoch for report in found.history] == [1, 2]
    assert [(r.loss, r.metrics) for r in found.history] == [(r.loss, r.metrics) for r in expected.history]
    assert same(copied(resumed), copied(whole))


def test_a_step_that_was_cut_in_half_is_not_saved(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    """A second Ctrl-C interrupts at once; the checkpoint stays that of the last epoch."""
    steps = 0

    def impatient(logits: Tensor, labels: Tensor) -> Tensor:
        nonlocal steps
        steps += 1
        for _ in range(2 if steps == 5 else 0):
            os.kill(os.getpid(), signal.SIGINT)
        return nn.functional.cross_entropy(logits, labels)

    with pytest.raises(KeyboardInterrupt):
        fit(Colours(), loader(), loss=impatient, out=tmp_path)
    assert "in the middle of a step, which is not saved" in caplog.text
    assert read_state(tmp_path / "checkpoint.safetensors")["step"] == 3


def test_ctrl_c_without_a_folder_says_what_is_left(caplog: pytest.LogCaptureFixture):
    with pytest.raises(KeyboardInterrupt):
        fit(Colours(), Interrupted(2))
    assert "the model keeps its present weights. Pass out=" in caplog.text


def test_a_folder_of_other_settings_is_refused_and_a_finished_one_is_not_trained_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    model = Colours()
    fit(model, loader(), out=tmp_path)
    other = Colours()
    before = copied(other)
    with pytest.raises(CheckpointError, match=r"other settings \(learning_rate was 0.05 and is now 0.1;"):
        fit(other, loader(), learning_rate=0.1, out=tmp_path)
    assert same(before, copied(other))
    fit(other, loader(), out=tmp_path)
    assert "had ended (all epochs are done), so nothing is trained" in caplog.text
    assert same(copied(model), copied(other))


def test_a_size_network_that_learned_nothing_is_told():
    with pytest.warns(UserWarning, match=r"at input has not learned sizes.*ls.learn_sizes\(model, train_loader\)"):
        fit(adapted(trust=0.0), loader())


def test_a_resumed_fit_has_the_sizes_of_its_checkpoint(tmp_path: Path):
    with pytest.raises(KeyboardInterrupt):
        fit(adapted(), Interrupted(2), out=tmp_path)
    resumed = adapted(trust=0.0)  # a new process builds the model again
    fit(resumed, list(loader()), out=tmp_path)  # warnings are errors
    assert float(resumed.size_canonicalizer().network.trust) == 0.5


def test_a_canonicalizer_that_nothing_teaches_is_told():
    def paper(**settings: Any) -> ls.AdaptedModel:
        config = ls.DECConfig.paper(knots=4, network=ls.ConvNetwork((4, 8), resolution=16), **settings)
        return ls.adapt(Colours(), config, input_size=SIZE)

    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        ls.fit(paper(detached=("input",)), loader(), epochs=1, cpu=True, progress=False)
    assert {each.filename for each in said} == {__file__}
    messages = [str(each.message) for each in said if each.category is UserWarning]
    assert any("nothing teaches the canonicalizer at input" in message for message in messages)
    assert any("input received no gradient in this whole epoch" in message for message in messages)
    fit(paper(), loader(), epochs=1)  # warnings are errors: the task's loss reaches this one


def test_a_loss_of_ones_own_is_minimised():
    model = Colours()
    fit(model, loader(), loss=lambda logits, labels: logits.square().mean(), epochs=20)
    assert float(model.eval()(photographs()[0]).detach().abs().max()) < 0.2


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"epochs": 0}, "epochs is 0; expected at least 1"),
        ({"warmup": 1.0}, "warmup is 1.0"),
        ({"learning_rate": float("inf")}, "learning_rate is inf"),
        ({"monitor": "acuracy"}, "monitor is 'acuracy': did you mean accuracy"),
        ({"patience": 2}, "patience is 2; expected at least 1, and a val_loader"),
        ({"size_weight": 1.0}, "size_weight is for adapted models"),
    ],
)
def test_settings_that_cannot_be(settings: dict[str, Any], message: str):
    with pytest.raises(ConfigError, match=message):
        fit(Colours(), loader(), **settings)


def test_loaders_that_cannot_be():
    images, labels = photographs()
    with pytest.raises(DataError, match=r"a batch has one image, from which a batch norm.*drop_last=True"):
        fit(Colours(), [(images[:4], labels[:4]), (images[4:5], labels[4:5])])
    with pytest.raises(DataError, match=r"labels run from 0 to 2, and the model answers with 2 classes.*num_classes=3"):
        fit(Colours(2), loader())
    with pytest.raises(DataError, match=r"a batch is Tensor \(\d+, 3, .*expected \(images, labels\)"):
        fit(Colours(), [images])
    dataset = list(zip(images, labels, strict=True))
    with pytest.raises(DataError, match=r"a batch is \(Tensor \(3, .*\), Tensor \(\)\);.*DataLoader\(dataset"):
        fit(Colours(), dataset)
    with pytest.raises(DataError, match="generator without a length"):
        fit(Colours(), (batch for batch in [(images, labels)]))
    with pytest.raises(DataError, match="train_loader has no batch"):
        fit(Colours(), [])
    with pytest.raises(DataError, match="val_loader gave no batch"):
        fit(Colours(), loader(), [])


class Precision(Colours):
    """A classifier that remembers whether it ran under autocast."""

    def forward(self, x: Tensor) -> Tensor:
        self.half = torch.is_autocast_enabled("cpu")
        return super().forward(x)


def test_every_call_has_its_own_precision(caplog: pytest.LogCaptureFixture):
    AcceleratorState._reset_state(reset_partial_state=True)  # a run of another test may have left its own
    model = Precision()
    for precision in ("bf16", "no", "bf16"):
        fit(model, loader(), precision=precision, epochs=1)
        assert model.half == (precision == "bf16")
    mine = Accelerator(cpu=True)
    try:
        fit(model, loader(), precision="bf16", epochs=1)
        assert not model.half
        assert mine.mixed_precision == "no", "a program's own accelerator stays as it is"
        assert "precision is 'bf16' and cpu True, but this program has an accelerator with 'no' on cpu" in caplog.text
    finally:
        AcceleratorState._reset_state(reset_partial_state=True)


def test_progress_prints_a_line_for_every_epoch(capsys: pytest.CaptureFixture, caplog: pytest.LogCaptureFixture):
    caplog.set_level(logging.WARNING)
    fit(Colours(), loader(), loader(), progress=True)
    assert "accuracy" in capsys.readouterr().err
