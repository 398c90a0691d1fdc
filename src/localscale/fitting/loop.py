"""``fit``: fine-tune a model on plain loaders."""

from __future__ import annotations

import logging
import math
import sys
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn
from tqdm import tqdm

from localscale.adaptation import AdaptedModel
from localscale.errors import ConfigError, DataError, TrainingError
from localscale.fitting.accelerator import accelerator_for
from localscale.fitting.batches import images_and_labels, logits_of
from localscale.fitting.folder import FitFolder, Progress
from localscale.fitting.parameters import held, parameter_groups
from localscale.fitting.randomness import capture, restore, restore_torch
from localscale.fitting.settings import Callback, EpochReport, FitSettings, Fitted
from localscale.fitting.targets import check_classes, task_loss
from localscale.fitting.traps import Gradients, batch_norm_explained, warn_about_masks, warn_about_teaching
from localscale.fitting.validation import validate
from localscale.processes import explained
from localscale.stopping import StopRequest

__all__ = ["fit"]

Loss = Callable[[Tensor, Tensor], Tensor]
logger = logging.getLogger(__name__)
RESUME = "call ls.fit again, which goes on from the last checkpoint if it has the same out"


@explained(RESUME)
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

    It runs on a CPU, a GPU or, under ``accelerate launch``, on several. Ctrl-C stops after the present step and writes
    a checkpoint to ``out``; the same call goes on from there, with the batches that are left of the epoch. What ``out``
    holds of an adapted model, ``AdaptedModel.from_pretrained`` loads.

    If the loss or its gradient is not finite in some epoch, training ends, and the model has the weights of the best
    epoch before it; without such an epoch ``TrainingError`` is raised. The death of a data worker or of another
    process is a ``TrainingError``, too, and a file that a data worker cannot read a ``DataError``.

    Args:
        model: an adapted model, or any other as its control.
        train_loader: a loader of ``(images, labels)``, or of dictionaries with ``pixel_values`` and ``labels``. Labels
            are classes ``(B,)``, probabilities ``(B, classes)``, or masks ``(B, H, W)`` or ``(B, 1, H, W)``, in which
            255 and -100 do not count. Class maps smaller than the masks are enlarged to their size.
        val_loader: the same for validation after every epoch; without it, the last epoch is the best.
        epochs: passes over ``train_loader``.
        learning_rate: highest rate of the base model; it rises during the warm-up and then falls as half a cosine.
        head_rate: highest rate of the base model's classifier; by default ten times ``learning_rate``.
        canonicalizer_rate: highest rate of the canonicalizers.
        weight_decay: of matrices; vectors and canonicalizers have none.
        warmup: fraction of all steps in which the rates rise from zero.
        clip: largest norm of the gradient; 0 means no limit.
        loss: a function of logits and labels as they come; by default the cross-entropy.
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
    _length(train_loader)
    with held(model, size_weight), accelerator_for(precision, cpu=cpu) as accelerator:
        fitting = _Fitting(model, settings, loss, (train_loader, val_loader), accelerator)
        folder = None if out is None else FitFolder(Path(out), settings, fitting.steps)
        return fitting.run(folder, patience, callbacks, scaling, progress=progress)


class _Step(nn.Module):
    """The loss as one module, so that autocast and distributed data parallel see every use of a parameter."""

    def __init__(self, model: nn.Module, own_loss: Loss | None, size_weight: float) -> None:
        super().__init__()
        self.model, self.own_loss, self.size_weight = model, own_loss, size_weight
        self.checked = False

    def forward(self, images: Tensor, labels: Tensor) -> Tensor:
        if not (self.checked or bool(torch.isfinite(images).all())):
            raise DataError("images of the first batch contain NaN or infinite values; check how they are normalised")
        with batch_norm_explained():
            logits = logits_of(self.model(images)).float()
        if not self.checked:
            if logits.dim() == 4 and labels.dim() > 2:
                warn_about_masks(self.model)
            if self.own_loss is None:
                check_classes(logits, labels)
            self.checked = True
        loss = task_loss(logits, labels, images, self.own_loss)
        if self.size_weight:
            assert isinstance(self.model, AdaptedModel)
            loss = loss + self.size_weight * self.model.size_loss(images)
        return loss


class _Fitting:
    """Model, optimizer, loaders and accelerator, ready to train."""

    def __init__(
        self,
        model: nn.Module,
        settings: FitSettings,
        own_loss: Loss | None,
        loaders: tuple[Iterable[Any], Iterable[Any] | None],
        accelerator: Any,
    ) -> None:
        self.model, self.settings, self.own_loss, self.accelerator = model, settings, own_loss, accelerator
        self.main = self.accelerator.is_main_process
        self.train, self.val = (self.accelerator.prepare(loader) for loader in loaders)
        self.steps = _length(self.train)  # of this process
        self.optimizer = torch.optim.AdamW(parameter_groups(model, settings))
        self.peaks = [group["lr"] for group in self.optimizer.param_groups]
        step = _Step(model, own_loss, settings.size_weight)
        self.step, self.prepared = self.accelerator.prepare(step, self.optimizer)
        self.gradients = Gradients(model)
        self.updating = False  # whether a step has begun and not ended

    def run(
        self,
        folder: FitFolder | None,
        patience: int | None,
        callbacks: Sequence[Callback],
        scaling: float,
        *,
        progress: bool,
    ) -> Fitted:
        """Train from where ``folder`` stands to the end, and load the best weights."""
        at = Progress() if folder is None else folder.resume(self.model, self.optimizer)
        warn_about_teaching(self.model, size_weight=self.settings.size_weight, own_loss=self.own_loss is not None)
        if at.random is not None:
            restore(at.random, self.train, torch_too=self.main)
        if at.step == len(at.history) * self.steps:  # else an epoch has to be trained further, or validated
            at.ended = at.ended or self._ending(at, patience, stopped=False)
        total = self.settings.epochs * self.steps
        bar = tqdm(total=total, initial=at.step, desc="fitting", unit="step", disable=not (progress and self.main))
        try:
            with bar, StopRequest(self.accelerator.num_processes == 1) as stop:
                while not at.ended:
                    report = self._epoch(at, bar, stop)
                    if not report.finite:
                        return self._diverged(at, report, folder)
                    stop.check()
                    report = self._validate(report, scaling, stop)
                    better = self.settings.better(report, at.best)
                    if better:
                        at.keep(self.model, report, folder if self.main else None)
                    at.add(report, better=better)
                    if progress and self.main:
                        bar.write(str(report), file=sys.stderr)
                    stopping = [callback for callback in callbacks if callback(report) is True]
                    at.ended = self._ending(at, patience, stopped=bool(stopping))
                    self._write(at, folder)
                    if not at.ended:
                        stop.check()
        except KeyboardInterrupt:
            _say_stopped(at, self.steps, self.settings, folder, updating=self.updating)
            if not self.updating:
                self._write(at, folder)
            raise
        if at.best is None:
            raise TrainingError(
                "no epoch can be kept, because no validation had finite metrics; check the images of val_loader"
            )
        at.load_best(self.model, folder)
        return Fitted(tuple(at.history), at.best, at.ended)

    def _epoch(self, at: Progress, bar: tqdm, stop: StopRequest) -> EpochReport:
        """Train the steps that are left of an epoch: all of them, or none if only its validation is missing."""
        self.step.train()
        last = (len(at.history) + 1) * self.steps
        started = time.perf_counter()
        seen = finite = torch.ones((), dtype=torch.bool, device=self.accelerator.device)
        sums: dict[str, Any] = {}
        try:
            for batch in self._batches(at) if at.step < last else ():
                if at.step == last:
                    break
                images, labels = images_and_labels(batch)
                self._set_rates(at.step)
                self.updating = True
                self.prepared.zero_grad()
                images = images.to(self.accelerator.device)
                loss = self.step(images, labels.to(self.accelerator.device))
                self.accelerator.backward(loss)
                trained = [p for group in self.optimizer.param_groups for p in group["params"]]
                norm = self.accelerator.clip_grad_norm_(trained, self.settings.clip or math.inf)
                seen, finite = seen & torch.isfinite(images).all(), finite & torch.isfinite(norm)
                for site, each in self.gradients.norms().items():
                    sums[site] = sums.get(site, 0) + each
                self.prepared.step()
                at.loss = at.loss + loss.detach().float()
                at.step += 1
                self.updating = False
                bar.update()
                if at.step < last:
                    stop.check()
        finally:
            at.seconds += time.perf_counter() - started
        if at.step < last:
            raise DataError(
                f"train_loader gave {at.step % self.steps} batches and said it had {self.steps}; expected a loader "
                "that can be iterated over again and again"
            )
        for site in (site for site, total in sums.items() if float(total) == 0):
            warnings.warn(
                f"the canonicalizer at {site} received no gradient in this whole epoch, so it learns nothing; check "
                "detached, and that your loss depends on it",
                stacklevel=5,  # where fit was called
            )
        loss = torch.as_tensor(at.loss, device=self.accelerator.device) / self.steps
        mean = float(self.accelerator.reduce(loss, "mean"))
        if not bool(seen):
            logger.warning("images of epoch %d contain NaN or infinite values", at.step // self.steps)
        return EpochReport(at.step // self.steps, mean if bool(finite) else math.nan, at.seconds, {})

    def _batches(self, at: Progress) -> Iterator[Any]:
        """Yield the batches that are left of an epoch, in the order with which it began."""
        first = at.step - len(at.history) * self.steps
        if hasattr(self.train, "set_epoch"):  # of accelerate's loaders; some samplers shuffle by it
            self.train.set_epoch(len(at.history))
        if not first:
            at.order = capture(self.train)
            yield from self.train
            return
        present = capture(self.train)
        if at.order is not None:
            restore(at.order, self.train, torch_too=self.main)
        for number, batch in enumerate(_skip(self.train, first)):
            if number == 0 and self.main:
                restore_torch(present)
            yield batch

    def _validate(self, report: EpochReport, scaling: float, stop: StopRequest) -> EpochReport:
        if self.val is None:
            return report
        metrics = validate(self.model, self.val, self.accelerator, self.own_loss, scaling, stop.check)
        report = EpochReport(report.epoch, report.loss, report.seconds, metrics)
        if not report.finite:
            logger.warning(
                "epoch %d is not kept, because its metrics are not finite (%s); check the images of val_loader",
                report.epoch,
                ", ".join(f"{name} {value}" for name, value in metrics.items() if not math.isfinite(value)),
            )
        return report

    def _diverged(self, at: Progress, report: EpochReport, folder: FitFolder | None) -> Fitted:
        """End a fit in whose last epoch the weights became NaN; its checkpoint stays that of the epoch before."""
        what = f"the training loss or its gradient was not finite in epoch {report.epoch}"
        advice = "lower learning_rate and canonicalizer_rate, or check the images"
        if at.best is None:
            raise TrainingError(
                f"{what}, and no epoch before it can be kept; {advice}, and build the model again: its weights are "
                "no longer finite"
            )
        logger.warning("%s; the model has the weights of epoch %d. To train on, %s", what, at.best.epoch, advice)
        at.load_best(self.model, folder)
        return Fitted((*at.history, report), at.best, what)

    def _write(self, at: Progress, folder: FitFolder | None) -> None:
        if folder is None or not self.main:
            return
        untouched = at.order is not None and at.step == len(at.history) * self.steps
        at.random = at.order if untouched else capture(self.train)  # a loader that was started has drawn its order
        folder.write(at, self.model, self.optimizer)

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


def _skip(loader: Any, first: int) -> Iterator[Any]:
    """Yield the batches of ``loader`` without the first ones; a DataLoader does not even load those."""
    from accelerate import skip_first_batches
    from torch.utils.data import DataLoader

    if isinstance(loader, DataLoader):
        yield from skip_first_batches(loader, first)
    else:
        yield from (batch for number, batch in enumerate(loader) if number >= first)


def _say_stopped(at: Progress, steps: int, settings: FitSettings, folder: FitFolder | None, *, updating: bool) -> None:
    finished = at.step == (len(at.history) + 1) * steps
    phase = f"before the validation of epoch {at.step // steps}" if finished else f"in epoch {at.step // steps + 1}"
    where = f"stopped at step {at.step} of {settings.epochs * steps}, {phase}"
    if updating:
        where += ", in the middle of a step, which is not saved"
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
