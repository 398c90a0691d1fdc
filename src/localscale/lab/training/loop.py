"""The training loop of every method, on a CPU, a GPU or several processes (``accelerate launch``)."""

from __future__ import annotations

import dataclasses
import itertools
import logging
import math
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.utils import broadcast, set_seed
from torch import Tensor, nn
from tqdm import tqdm

from localscale.checkpoints import read_state
from localscale.errors import CheckpointError, ConfigError, TrainingError
from localscale.fitting.traps import Gradients
from localscale.lab.backbones.catalogue import convolutional, repeated_blocks
from localscale.lab.methods import TrainingStep
from localscale.lab.randomness import Draws
from localscale.lab.recipes.optimization import Schedule
from localscale.lab.recipes.recipe import Recipe
from localscale.lab.recipes.regularization import mixing, smoothing
from localscale.lab.tasks.task import Batches, Shard, Task, seed_of
from localscale.lab.training.graph import Replayed
from localscale.lab.training.memory import memory_advice
from localscale.stopping import StopRequest

logger = logging.getLogger(__name__)

__all__ = ["Epoch", "Loop", "Position"]

KEPT = 2048  # images in memory while sizes are learned: 0.3 GB in 8 bits at 224 px, 1.2 GB at 448 px


@dataclass(frozen=True)
class Epoch:
    """The result of an epoch: means of all logged scalars, skipped steps and seconds."""

    number: int
    scalars: dict[str, float]
    skipped: int
    seconds: float


@dataclass
class Position:
    """The progress of a run: all of its state besides the weights and the optimizer's state.

    ``sums`` are those of the logged scalars in an epoch that has begun; only the state of a checkpoint holds them.
    """

    step: int = 0
    skipped: int = 0
    schedule: dict[str, Any] = field(default_factory=dict)
    sums: dict[str, float] = field(default_factory=dict)

    @classmethod
    def from_state(cls, state: dict[str, Any], steps: int) -> Position:
        """Return the position in the state of a checkpoint; raise ``ValueError`` for one outside ``steps`` or none."""
        found = state.get("position")
        if not isinstance(found, dict) or set(found) != {"step", "skipped", "schedule", "sums"}:
            raise ValueError(f"it is {found!r}; expected step, skipped, schedule and sums")
        if not all(type(found[name]) is int and 0 <= found[name] <= steps for name in ("step", "skipped")):
            raise ValueError(f"it is {found!r}, of {steps} steps")
        schedule = found["schedule"]
        if not isinstance(schedule, dict) or set(schedule) != {"best", "waited", "drops"}:
            raise ValueError(f"its schedule is {schedule!r}; expected best, waited and drops")
        if not all(isinstance(value, int | float) for value in schedule.values()):
            raise ValueError(f"its schedule is {schedule!r}; expected numbers")
        sums = found["sums"]
        if not isinstance(sums, dict) or not all(isinstance(value, int | float) for value in sums.values()):
            raise ValueError(f"its sums are {sums!r}; expected numbers by name")
        return cls(**found)


@dataclass
class _Examples:
    """The normalised training images of one epoch with their labels, in batches, for ``learn_sizes``.

    Images that are decoded from files are kept after the first pass, at most ``KEPT`` of them; decoding them again in
    every pass would take longer than learning from them.

    ``learn_sizes`` asks once for a batch to measure on, and then makes pass after pass without this first batch. The
    random numbers of a step depend on its pass and batch, and ``done`` steps are skipped, so that learning continues
    as if it had never stopped.
    """

    loop: Loop
    batches: Batches
    done: int = 0
    kept: list[Any] = field(default_factory=list)
    passes: int = 0

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        task, device, seed = self.loop.task, self.loop.device, self.loop.recipe.seed
        last = min(self.batches.per_epoch, max(1, KEPT // self.batches.size)) if task.from_files else None
        last = last or self.batches.per_epoch
        before, skipped = divmod(self.done, max(1, last - 1))
        number, self.passes = before + self.passes, self.passes + 1
        whole = self.passes != 2 or not skipped  # the first pass of learning, after the batch to measure on
        wanted = self.batches.steps(0, last)
        if not whole:
            wanted = itertools.chain(self.batches.steps(0, 1), self.batches.steps(1 + skipped, last))
        read = []
        for indices, loaded in self.kept or task.load(wanted, seed):
            if task.from_files and whole and not self.kept:
                read.append((indices, loaded))
            images, labels = task.images(indices, loaded, device)
            images = task.normalise(images)
            set_seed(seed_of(seed, "sizes", number, indices.step))
            yield images, labels
        self.kept = self.kept or read


class Loop:
    """Model, optimizer and data of a recipe, ready to train.

    All random numbers are functions of the seed and the step, so that a resumed run continues as if it had never
    stopped. Order and scaling depend on the sample, so they do not depend on the number of processes. Each process
    draws its own drop path, dropout, mixup and erasing, and computes batch statistics of its own share.
    """

    def __init__(
        self,
        recipe: Recipe,
        backbone: nn.Module,
        task: Task,
        accelerator: Accelerator,
        *,
        cuda_graph: bool = True,
        compile_blocks: bool = False,
    ) -> None:
        self.recipe, self.task, self.accelerator = recipe, task, accelerator
        settings = recipe.optimization
        self.shard = Shard(accelerator.process_index, accelerator.num_processes)
        self.batches = Batches(task.train_count, settings.batch_size, recipe.seed, self.shard)
        share = settings.batch_size // self.shard.world
        if (recipe.regularization.mixup or recipe.regularization.cutmix) and share % 2:
            raise ConfigError(
                f"--mixup needs an even number of images in each process, not {share}; "
                f"try --batch-size {(share + 1) * self.shard.world}"
            )
        if recipe.head_norm and share < 2:
            raise ConfigError(
                f"--head-norm needs at least two images in each process, not {share}; "
                f"try --batch-size {2 * self.shard.world}"
            )
        if accelerator.device.type == "cuda" and convolutional(backbone):
            backbone.to(memory_format=torch.channels_last)
        groups = settings.backbone_groups(backbone)
        blocks = repeated_blocks(backbone) if compile_blocks else []
        if compile_blocks and not blocks:
            logger.warning("%s has no repeated blocks, so --compile-blocks has no effect", type(backbone).__name__)
        self.model = recipe.build(backbone)
        if blocks:  # older versions of torch count the shapes of all blocks together and stop compiling at eight
            torch._dynamo.config.recompile_limit = max(64, torch._dynamo.config.recompile_limit)
        for block in blocks:
            block.compile(dynamic=False)  # one dynamic graph for all shapes takes minutes to compile
        replayed = cuda_graph and accelerator.device.type == "cuda" and accelerator.num_processes == 1
        self.optimizer = settings.optimizer(groups, self.model, accelerator.device if replayed else None)
        self.schedule = Schedule(settings, self.optimizer, self.batches.per_epoch)
        self.position = Position(schedule=self.schedule.state())
        self._sums = _Sums()
        self._gradients = Gradients(self.model)
        self._mix = mixing(recipe.regularization, task.classes)
        step = TrainingStep(self.model, recipe.method, task.criterion(smoothing(recipe.regularization)))
        self._step, self._optimizer = accelerator.prepare(step, self.optimizer)
        self.parameters = [p for p in self.model.parameters() if p.requires_grad]
        norms = [m for m in self.model.modules() if isinstance(m, nn.modules.batchnorm._NormBase)]
        self._statistics = [buffer for norm in norms for buffer in norm.buffers()]
        self._replayed = replayed
        self._update: Callable[..., dict[str, Tensor]] = Replayed(self._take_step) if replayed else self._take_step
        self.updating = False  # whether a step has begun and not ended

    @property
    def total_steps(self) -> int:
        """Number of steps of the whole run."""
        return self.recipe.optimization.epochs * self.batches.per_epoch

    def examples(self, done: int = 0) -> Iterable[tuple[Tensor, Tensor]]:
        """Return the normalised training images and their labels in batches, which can be iterated over repeatedly.

        ``done`` is the number of steps that an interrupted preparation has taken.
        """
        size = 64 if self.task.from_files else 256  # photographs take longer to load, and sizes need no large batch
        batches = Batches(self.task.train_count, min(size, self.task.train_count), self.recipe.seed)
        return _Examples(self, batches, done)

    def prepare(self, *, progress: bool, checkpoint: Path | None = None) -> dict[str, Any] | None:
        """Let the method prepare the model in the main process; the other processes wait and get its weights.

        Return what the method found. An interrupted preparation leaves ``checkpoint`` and continues from it.
        """
        found = None
        if self.accelerator.is_main_process:
            done = read_state(checkpoint).get("step") if checkpoint is not None and checkpoint.exists() else 0
            if type(done) is not int or done < 0:
                raise CheckpointError(f"{checkpoint} is not a checkpoint of a size network; remove it to start again")
            batches = self.examples(done)
            found = self.recipe.method.prepare(self.model, batches, progress=progress, checkpoint=checkpoint)
        with torch.no_grad():
            for tensor in (*self.model.parameters(), *self.model.buffers()):
                tensor.copy_(broadcast(tensor))
        return found

    def state(self) -> dict[str, Any]:
        """Return the position for a checkpoint, between two steps."""
        return vars(self.position) | {"sums": self._sums.state()}

    def restore(self, position: Position) -> None:
        """Continue from ``position``, after the weights and the optimizer's state have been loaded."""
        self.position = dataclasses.replace(position, sums={})
        self.schedule.restore(position.schedule)
        self._sums = _Sums.of(position.sums, position.step % self.batches.per_epoch, self.device)

    def run(self, after_epoch: Callable[[Epoch], None], *, progress: bool) -> None:
        """Train to the last step and call ``after_epoch`` after every epoch; Ctrl-C stops between two steps."""
        bar = tqdm(
            total=self.total_steps, initial=self.position.step, desc="training", unit="step", disable=not progress
        )
        self._step.train()
        started = time.perf_counter()
        with bar, memory_advice(self.recipe.optimization.batch_size), StopRequest(self.shard.world == 1) as stop:
            steps = self.batches.steps(self.position.step, self.total_steps)
            for indices, loaded in self.task.load(steps, self.recipe.seed):
                images = self.task.images(indices, loaded, self.device)
                self.updating = True
                self._sums.add(self.one_step(indices.step, indices.samples, images))
                self.position.step = indices.step + 1
                self.updating = False
                bar.update()
                if self.position.step % self.batches.per_epoch == 0:
                    epoch = self._finish_epoch(self._sums, started)
                    self._sums, started = _Sums(), time.perf_counter()
                    bar.set_postfix(loss=f"{epoch.scalars['loss']:.3f}", refresh=False)
                    after_epoch(epoch)
                stop.check()
        for buffer in self.model.buffers():  # each process has its own batch statistics and trust; keep the first's
            buffer.copy_(broadcast(buffer))

    @property
    def device(self) -> torch.device:
        """Device of the model."""
        return self.accelerator.device

    def one_step(self, step: int, samples: Tensor, batch: tuple[Tensor, Tensor]) -> dict[str, Tensor]:
        """Train on one batch of images in [0,1] and labels; return the scalars to log, on the device."""
        set_seed(seed_of(self.recipe.seed, "step", step, self.shard.rank))
        samples = samples.to(self.device, non_blocking=True)
        images, labels = batch
        if self._mix is not None:
            images, labels = self._mix(*self._augment(images, labels, samples))
        self.schedule.before_step(step)
        self._let_learn(step)
        return self._update(images, labels, samples)

    def _let_learn(self, step: int) -> None:
        """Turn off the gradients of parameters whose training begins later, which saves their backward pass.

        With several processes they stay on, because the parameters that have gradients must not change there.
        """
        if self.shard.world > 1:
            return
        for group in self.optimizer.param_groups:
            begun = self.schedule.begun(step, group)
            if group["params"] and group["params"][0].requires_grad != begun:
                for parameter in group["params"]:
                    parameter.requires_grad_(begun)
                if self._replayed:
                    self._update = Replayed(self._take_step)  # the recorded step has other gradients

    def _augment(self, images: Tensor, labels: Tensor, samples: Tensor) -> tuple[Tensor, Tensor]:
        """Return augmented and normalised images and their labels; label maps are scaled with the images."""
        draws = Draws(self.recipe.seed, samples)
        if self.task.dense:
            images, labels = self.recipe.augmentation.both(images, labels, draws)
        else:
            images = self.recipe.augmentation(images, draws)
        return self.task.normalise(images), labels

    def _take_step(self, images: Tensor, labels: Tensor, samples: Tensor) -> dict[str, Tensor]:
        """Run forward, backward and the update without host synchronisation."""
        accelerator = self.accelerator
        if self._mix is None:
            images, labels = self._augment(images, labels, samples)
        before = [buffer.clone() for buffer in self._statistics]
        self._optimizer.zero_grad()
        scalars = self._step(images, labels, self.recipe.seed, samples)
        accelerator.backward(scalars["loss"])
        # Loss and norm are equal in all processes, so that all skip the same steps.
        scalars["gradient"] = accelerator.clip_grad_norm_(self.parameters, self.recipe.optimization.clip or math.inf)
        scalars |= {f"{site}/gradient": norm for site, norm in self._gradients.norms().items()}
        loss = accelerator.reduce(scalars["loss"].detach(), "mean")
        finite = torch.isfinite(loss) & torch.isfinite(scalars["gradient"])
        # The fused optimizer skips the update where found_inf is 1, as it does for a gradient scaler.
        self.optimizer.found_inf = (~finite).float()  # type: ignore[attr-defined]
        self._optimizer.step()
        for buffer, old in zip(self._statistics, before, strict=True):
            buffer.copy_(torch.where(finite, buffer, old))
        return {name: torch.where(finite, value.detach(), 0) for name, value in scalars.items()} | {"taken": finite}

    def _finish_epoch(self, sums: _Sums, started: float) -> Epoch:
        names, values = list(sums.totals), torch.stack([v.double() for v in sums.totals.values()])
        summed = dict(zip(names, self.accelerator.reduce(values, "mean").tolist(), strict=True))
        taken = summed.pop("taken")
        skipped = round(sums.steps - taken)
        scalars = {name: value / taken if taken else math.nan for name, value in summed.items()}
        scalars["learning_rate"] = self.recipe.optimization.learning_rate * self.schedule.factor(self.position.step - 1)
        self.schedule.after_epoch(scalars["loss"])
        self.position.schedule = self.schedule.state()
        self.position.skipped += skipped
        if self.position.skipped > self.recipe.max_skipped:
            raise TrainingError(
                f"{self.position.skipped} steps had a loss or gradient that is not finite and were skipped, more than "
                f"--max-skipped {self.recipe.max_skipped} allows; lower --learning-rate or --canonicalizer-rate, or "
                "check the images"
            )
        number = self.position.step // self.batches.per_epoch
        for site, parameters in self._gradients.parameters.items():
            if scalars[f"{site}/gradient"] == 0 and parameters[0].requires_grad:
                logger.warning(
                    "epoch %d: the canonicalizer at %s received no gradient, so it learns nothing; check "
                    "--method.config.detached, and that a loss depends on it",
                    number,
                    site,
                )
        return Epoch(number, scalars, skipped, time.perf_counter() - started)


class _Sums:
    """Running sums that stay on the device until an epoch ends."""

    def __init__(self) -> None:
        self.totals: dict[str, Tensor] = {}
        self.steps = 0

    @classmethod
    def of(cls, state: dict[str, float], steps: int, device: torch.device) -> _Sums:
        """Return the sums of ``steps`` steps that ``state()`` returned."""
        sums = cls()
        sums.totals = {name: torch.tensor(value, dtype=torch.float32, device=device) for name, value in state.items()}
        sums.steps = steps if state else 0
        return sums

    def state(self) -> dict[str, float]:
        """Return the sums as numbers; float32 values survive this exactly."""
        return {name: float(value) for name, value in self.totals.items()}

    def add(self, scalars: dict[str, Tensor]) -> None:
        self.steps += 1
        for name, value in scalars.items():
            self.totals[name] = self.totals[name] + value.float() if name in self.totals else value.float().clone()
