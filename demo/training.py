"""Train a model and compute its answers, in the same way for every row of the table."""

import time
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from timm.models.resnet import BasicBlock, ResNet
from torch import Tensor, nn
from tqdm import tqdm

import localscale as ls

BATCH = 100
WEIGHT_DECAY = 0.02
AUGMENT_STRENGTH = 1.0


@dataclass(frozen=True)
class Budget:
    """Epochs and the highest learning rate, the same for both models."""

    epochs: int
    learning_rate: float


def small_backbone(classes: int = 100) -> nn.Module:
    """Return a ResNet of four narrow blocks with 0.3 million parameters."""
    return ResNet(
        BasicBlock,
        (1, 1, 1, 1),
        num_classes=classes,
        in_chans=1,
        channels=(16, 32, 64, 128),
        stem_type="deep",
        stem_width=8,
    )


def normalise(images: Tensor) -> Tensor:
    """Shift and scale images to a mean near zero and a standard deviation near one."""
    return (images - 0.06) / 0.2


def train(model: nn.Module, images: Tensor, labels: Tensor, budget: Budget, *, seed: int, title: str) -> float:
    """Train with random monotone scaling as augmentation; return the seconds that it took.

    All random numbers come from ``seed``, so two models trained with the same seed see the same images.
    """
    start = time.perf_counter()
    generator = torch.Generator().manual_seed(seed)
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(parameters, budget.learning_rate, weight_decay=WEIGHT_DECAY)
    steps = budget.epochs * (len(images) // BATCH)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, budget.learning_rate, total_steps=steps, pct_start=0.1)
    model.train()
    with tqdm(total=steps, desc=title, unit="step", leave=False) as bar:
        for _ in range(budget.epochs):
            order = torch.randperm(len(images), generator=generator)
            for batch in order.split(BATCH):
                m = ls.random_map(len(batch), 6, strength=AUGMENT_STRENGTH, generator=generator)
                augmented = ls.unscale(images[batch], m)  # as good as scale for random maps, and needs no inverse
                logits = model(normalise(augmented))
                loss = F.cross_entropy(logits, labels[batch], label_smoothing=0.1)
                optimizer.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                schedule.step()
                bar.update()
    model.eval()
    return time.perf_counter() - start


@torch.no_grad()
def predict(model: nn.Module, images: Tensor) -> Tensor:
    """Return the class probabilities ``(N, K)`` of ``images``."""
    return torch.cat([model(normalise(batch)).softmax(dim=1) for batch in images.split(250)])
