"""``fit``: fine-tune a model on plain loaders."""

from __future__ import annotations

import contextlib
import logging
import math
import sys
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from tqdm import tqdm

from localscale.adaptation import AdaptedModel
from localscale.canonicalizer.sizes import SizeEstimator
from localscale.errors import ConfigError, DataError
from localscale.fitting.batches import check_labels, images_and_labels, logits_of
from localscale.fitting.folder import FitFolder, Progress
from localscale.fitting.settings import Callback, EpochReport, FitSettings, Fitted
from localscale.fitting.traps import Gradients, warn_about_teaching
from localscale.fitting.validation import validate

__all__ = ["fit"]

HEADS = ("get_classifier", "classifier", "fc", "head")
logger = logging.getLogger(__name__)


def fit(
    model: nn.Module,
    train_loader: Iterable[Any],
    val_loader: Iterable[Any] | None = None,
    *,
    epochs: int = 10,
    learning_rate: float = 1e-4,
    head_rate: float | None = None,
    canonicalizer_rate: float = 1e-3,
    weight_decay: float = 0.05,
    warmup: float = 0.1,
    clip: float = 1.0,
    loss: Callable[[Tensor, Tensor], Tensor] | None = None,
    size_weight: float = 0.0,
    scaling: float = 1.0,
    monitor: str = "accuracy",
    patience: int | None = None,
    callbacks: Sequence[Callback] = (),
    out: str | Path | None = None,
    precision: Literal["no", "bf16"] | None = None,
    cpu: bool = False,
    progress: bool = True,
) -> Fitted:
    """Fine-tune ``model`` with AdamW; afterwards it has the weights of the best epoch.

    It runs on a CPU, a GPU or, under ``accelerate launch``, on several. Ctrl-C writes a checkpoint to ``out``; the same
    call goes on from there. What ``out`` holds of an adapted model, ``AdaptedModel.from_pretrained`` loads.

    Args:
        model: an adapted model, or any other as its control.
        train_loader: a loader of ``(images, labels)``, or of dictionaries with ``pixel_values`` and ``labels``.
        val_loader: the same for validation after every epoch; without it, the last epoch is the best.
        epochs: passes over ``train_loader``.
        learning_rate: highest rate of the base model; it rises during the warm-up and then falls as half a cosine.
        head_rate: highest rate of the base model's classifier; by default ten times ``learning_rate``.
        canonicalizer_rate: highest rate of the canonicalizers.
        weight_decay: of matrices; vectors and canonicalizers have none.
        warmup: fraction of all steps in which the rates rise from zero.
        clip: largest norm of the gradient; 0 means no limit.
        loss: a function of logits and labels; by default the cross-entropy.
        size_weight: weight of the loss that teaches a size network; 0 keeps the network as ``learn_sizes`` left it.
        scaling: strength of the random local scalings with which validation measures how much answers change.
        monitor: which metric decides the best epoch: ``"accuracy"``, ``"loss"``, ``"invariance_error"`` or, for masks,
            ``"equivariance_error"``.
        patience: stop after this many epochs without a better one; ``None`` trains all epochs.
        callbacks: called with the ``EpochReport`` after every epoch; one that returns True ends the training.
        out: folder for the best weights, ``log.jsonl`` and the checkpoint; a call with the same settings resumes there.
        precision: ``"bf16"`` or ``"no"``; by default bfloat16 on a GPU that has it.
        cpu: train on the CPU even if there is a GPU.
        progress: show a progress bar and a line for every epoch.

    >>> import timm, localscale as ls
    >>> model = ls.adapt(timm.create_model("test_vit", num_classes=2, img_size=64), input_size=(3, 64, 64))
    >>> batch = torch.rand(4, 3, 64, 64), torch.tensor([0, 1, 0, 1])
    >>> found = ls.learn_sizes(model, batch[0], steps=2, progress=False)
    >>> ls.fit(model, [batch], epochs=2, cpu=True, progress=False).ended
    'all epochs are done'
    """
    settings = FitSettings(
        epochs,
        learning_rate,
        10 * learning_rate if head_rate is None else head_rate,
        canonicalizer_rate,
        weight_decay,
        warmup,
        clip,
        size_weight,
        monitor,
    )
    if patience is not None and (patience < 1 or val_loader is None):
        raise ConfigError(f"patience is {patience}; expected at least 1, and a val_loader to measure on")
    steps = _length(train_loader)
    warn_about_teaching(model, size_weight=size_weight, own_loss=loss is not None)
    with _held(model, size_weight):
        fitting = _Fitting(model, settings, steps, loss or F.cross_entropy, precision, cpu=cpu)
        folder = None if out is None else FitFolder(Path(out), settings, steps)
        return fitting.run(train_loader, val_loader, folder, patience, callbacks, scaling, progress=progress)


class _Step(nn.Module):
    """The loss as one module, so that autocast and distributed data parallel see every use of a parameter."""

    def __init__(self, model: nn.Module, criterion: Callable[[Tensor, Tensor], Tensor], size_weight: float) -> None:
        super().__init__()
        self.model, self.criterion, self.size_weight = model, criterion, size_weight
        self.checked = False

    def forward(self, images: Tensor, labels: Tensor) -> Tensor:
        logits = logits_of(self.model(images)).float()
        if not self.checked:
            check_labels(logits, labels)
            self.checked = True
        loss = self.criterion(logits, labels)
        if self.size_weight:
            assert isinstance(self.model, AdaptedModel)
            loss = loss + self.size_weight * self.model.size_loss(images)
        return loss


class _Fitting:
    """Model, optimizer and accelerator, ready to train."""

    def __init__(
        self,
        model: nn.Module,
        settings: FitSettings,
        steps: int,
        criterion: Callable[[Tensor, Tensor], Tensor],
        precision: str | None,
        *,
        cpu: bool,
    ) -> None:
        self.model, self.settings, self.steps, self.criterion = model, settings, steps, criterion
        self.accelerator = _accelerator(precision, cpu=cpu)
        self.optimizer = torch.optim.AdamW(_groups(model, settings))
        self.peaks = [group["lr"] for group in self.optimizer.param_groups]
        step = _Step(model, criterion, settings.size_weight)
        self.step, self.prepared = self.accelerator.prepare(step, self.optimizer)
        self.gradients = Gradients(model)

    def run(
        self,
        train_loader: Iterable[Any],
        val_loader: Iterable[Any] | None,
        folder: FitFolder | None,
        patience: int | None,
        callbacks: Sequence[Callback],
        scaling: float,
        *,
        progress: bool,
    ) -> Fitted:
        """Train from where ``folder`` stands to the end, and load the best weights."""
        main = self.accelerator.is_main_process
        at = Progress() if folder is None else folder.resume(self.model, self.optimizer)
        train, val = self.accelerator.prepare(train_loader), self.accelerator.prepare(val_loader)
        total = self.settings.epochs * self.steps
        bar = tqdm(total=total, initial=at.step, desc="fitting", unit="step", disable=not (progress and main))
        ended = at.ended
        try:
            with bar:
                while not ended:
                    report = self._epoch(train, at, bar)
                    if val is not None:
                        metrics = validate(self.model, val, self.accelerator, self.criterion, scaling)
                        report = EpochReport(report.epoch, report.loss, report.seconds, metrics)
                    if at.add(report, better=self.settings.better(report, at.best)):
                        at.keep(self.model, folder if main else None)
                    if progress and main:
                        bar.write(str(report), file=sys.stderr)
                    stop = [callback for callback in callbacks if callback(report) is True]
                    ended = self._ending(at, patience, stopped=bool(stop))
                    at.ended = ended
                    if folder is not None and main:
                        folder.write(at, self.model, self.optimizer)
        except KeyboardInterrupt:
            _say_stopped(at, self.steps, self.settings, folder)
            if folder is not None and main:
                folder.write(at, self.model, self.optimizer)
            raise
        at.load_best(self.model, folder)
        assert at.best is not None
        return Fitted(tuple(at.history), at.best, ended)

    def _epoch(self, loader: Any, at: Progress, bar: tqdm) -> EpochReport:
        self.step.train()
        started, first = time.perf_counter(), at.step % self.steps
        losses: list[Tensor] = []
        sums: dict[str, Any] = {}
        for batch in self._rest(loader, first):
            images, labels = images_and_labels(batch)
            self._set_rates(at.step)
            self.prepared.zero_grad()
            loss = self.step(images.to(self.accelerator.device), labels.to(self.accelerator.device))
            self.accelerator.backward(loss)
            trained = [p for group in self.optimizer.param_groups for p in group["params"]]
            self.accelerator.clip_grad_norm_(trained, self.settings.clip or math.inf)
            for site, norm in self.gradients.norms().items():
                sums[site] = sums.get(site, 0) + norm
            self.prepared.step()
            losses.append(loss.detach().float())
            at.step += 1
            bar.update()
            if at.step % self.steps == 0:
                break
        if at.step % self.steps:
            raise DataError(
                f"train_loader gave {at.step % self.steps} batches and said it had {self.steps}; expected a loader "
                "that can be iterated over again and again"
            )
        for site in (site for site, total in sums.items() if float(total) == 0):
            warnings.warn(
                f"the canonicalizer at {site} received no gradient in this whole epoch, so it learns nothing; check "
                "detached, and that your loss depends on it",
                stacklevel=5,
            )
        mean = float(self.accelerator.reduce(torch.stack(losses).mean(), "mean"))
        if not math.isfinite(mean):
            logger.warning("the training loss is %s; lower learning_rate, or check the images", mean)
        return EpochReport(at.step // self.steps, mean, time.perf_counter() - started, {})

    def _rest(self, loader: Any, first: int) -> Iterator[Any]:
        """Yield the batches of an epoch that was interrupted after ``first`` of them."""
        from accelerate import skip_first_batches
        from torch.utils.data import DataLoader

        if first and isinstance(loader, DataLoader):
            yield from skip_first_batches(loader, first)
        else:
            yield from (batch for number, batch in enumerate(loader) if number >= first)

    def _set_rates(self, step: int) -> None:
        total = self.settings.epochs * self.steps
        rising = max(1, round(self.settings.warmup * total))
        done = max(0.0, (step - rising) / max(1, total - rising))
        factor = min(1.0, (step + 1) / rising) * 0.5 * (1 + math.cos(math.pi * done))
        for group, peak in zip(self.optimizer.param_groups, self.peaks, strict=True):
            group["lr"] = factor * peak

    def _ending(self, at: Progress, patience: int | None, *, stopped: bool) -> str:
        if stopped:
            return "a callback ended it"
        if at.step >= self.settings.epochs * self.steps:
            return "all epochs are done"
        if patience is not None and at.waited >= patience:
            return f"no better epoch for {patience} epochs"
        return ""


def _say_stopped(at: Progress, steps: int, settings: FitSettings, folder: FitFolder | None) -> None:
    where = f"stopped at step {at.step} of {settings.epochs * steps}, in epoch {at.step // steps + 1}"
    if folder is None:
        logger.warning("%s; the model keeps its present weights. Pass out= to be able to go on another time", where)
    else:
        logger.warning("%s; call ls.fit again with the same settings and out=%r to go on", where, str(folder.path))


def _length(loader: Any) -> int:
    try:
        length = len(loader)
    except TypeError as error:
        raise DataError(
            f"train_loader is a {type(loader).__name__} without a length; expected a DataLoader or a list of batches"
        ) from error
    if not length:
        raise DataError("train_loader has no batch; it needs at least as many images as its batch size (drop_last?)")
    return length


@contextlib.contextmanager
def _held(model: nn.Module, size_weight: float) -> Iterator[None]:
    """Hold size networks still unless they are taught, and give their parameters back as they were."""
    if size_weight and not isinstance(model, AdaptedModel):
        raise ConfigError("size_weight is for adapted models; call ls.adapt first, or leave it out")
    if size_weight:
        assert isinstance(model, AdaptedModel)
        model.size_canonicalizer().requires_grad_(True)
    held: list[tuple[nn.Parameter, bool]] = []
    for canonicalizer in model.canonicalizers.values() if isinstance(model, AdaptedModel) and not size_weight else ():
        if isinstance(canonicalizer.network, SizeEstimator):
            held += [(parameter, parameter.requires_grad) for parameter in canonicalizer.parameters()]
    for parameter, _ in held:
        parameter.requires_grad_(False)
    try:
        yield
    finally:
        for parameter, asked in held:
            parameter.requires_grad_(asked)


def _groups(model: nn.Module, settings: FitSettings) -> list[dict[str, Any]]:
    """Return the parameter groups: base, its head, and the canonicalizers."""
    base: nn.Module = model.base if isinstance(model, AdaptedModel) else model
    added = list(model.canonicalizers.values()) if isinstance(model, AdaptedModel) else []
    head = {id(p) for module in _head(base) for p in module.parameters()}
    own = {id(p) for canonicalizer in added for p in canonicalizer.parameters()}
    sorted_in: dict[tuple[float, float], list[nn.Parameter]] = {}
    for parameter in model.parameters():
        if not parameter.requires_grad:
            continue
        if id(parameter) in own:
            key = settings.canonicalizer_rate, 0.0
        else:
            rate = settings.head_rate if id(parameter) in head else settings.learning_rate
            key = rate, settings.weight_decay if parameter.dim() > 1 else 0.0
        sorted_in.setdefault(key, []).append(parameter)
    if not sorted_in:
        raise ConfigError("no parameter of the model can be trained; call model.base.requires_grad_(True) first")
    return [{"params": p, "lr": rate, "weight_decay": decay} for (rate, decay), p in sorted_in.items()]


def _head(base: Any) -> list[nn.Module]:
    for name in HEADS:
        found = getattr(base, name, None)
        if name == "get_classifier" and callable(found):
            found = found()
        modules = [
            module for module in (found if isinstance(found, tuple) else (found,)) if isinstance(module, nn.Module)
        ]
        if modules:
            return modules
    return []


def _accelerator(precision: str | None, *, cpu: bool) -> Any:
    from accelerate import Accelerator
    from accelerate.state import AcceleratorState

    if precision is None and torch.cuda.is_available() and not cpu:
        precision = "bf16" if torch.cuda.is_bf16_supported() else "no"
    if AcceleratorState._shared_state:  # the program has an accelerator already, and there can be one only
        return Accelerator()
    return Accelerator(mixed_precision=precision or "no", cpu=cpu)
