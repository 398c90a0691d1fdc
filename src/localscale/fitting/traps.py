"""Warn about settings with which nothing would be learned."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator

import torch
from torch import Tensor, nn

from localscale.adaptation import AdaptedModel
from localscale.canonicalizer.sizes import SizeEstimator
from localscale.errors import DataError

__all__ = ["Gradients", "batch_norm_explained", "least_head_rate", "warn_about_masks", "warn_about_teaching"]

# By which the weights of a new head must be able to move. On layer-normed features of 192 to 768 channels, heads
# with torch's initialisation were right on at most 8 % of new images after moves of 5e-3, and after 2e-2 on 33 to 100 %
# of those of three clearly different classes.
MOVED = 1e-2


def warn_about_teaching(model: nn.Module, *, size_weight: float, own_loss: bool) -> None:
    """Warn if a size network has learned nothing, or if no loss reaches a canonicalizer of ``model``."""
    if not isinstance(model, AdaptedModel):
        return
    for path, canonicalizer in model.canonicalizers.items():
        network = canonicalizer.network
        if isinstance(network, SizeEstimator):
            if float(network.trust) == 0 and not size_weight:
                warnings.warn(
                    f"the size network at {path} has not learned sizes, so the model ignores them: call "
                    "ls.learn_sizes(model, train_loader) first, or with more steps; or pass size_weight=1.0 to learn "
                    "them along",
                    stacklevel=5,  # where fit was called
                )
        elif path in model.dec_config.detached and not own_loss:
            warnings.warn(
                f"nothing teaches the canonicalizer at {path}: detached={model.dec_config.detached} keeps the task's "
                "loss from it; leave detached out, or pass a loss of your own that teaches it",
                stacklevel=5,  # where fit was called
            )


def warn_about_masks(model: nn.Module) -> None:
    """Warn if a model that is trained on masks compares them with canonical forms."""
    if isinstance(model, AdaptedModel) and model.dec_config.mode == "invariant":
        warnings.warn(
            'the labels are masks, which have places in the image, but with mode="invariant" the model answers for the '
            'canonical form; adapt it with DECConfig(mode="equivariant")',
            stacklevel=2,
        )


def least_head_rate(steps: int) -> float:
    """Return the highest learning rate below which AdamW cannot train a new head; a step moves a weight by its rate.

    >>> f"{least_head_rate(steps=200):.0e}"
    '1e-04'
    """
    return 2 * MOVED / steps  # schedules halve the rate on average


@contextlib.contextmanager
def batch_norm_explained() -> Iterator[None]:
    """Turn PyTorch's error about a batch norm of one value per channel into one that says what to do."""
    try:
        yield
    except ValueError as error:
        if "more than 1 value per channel" not in str(error):
            raise
        raise DataError(
            f"a batch has one image, from which a batch norm of this model cannot learn ({error}); train with larger "
            "batches, and leave out a last batch of one image with DataLoader(…, drop_last=True)"
        ) from error


class Gradients:
    """The gradients that the trained canonicalizers of a model receive."""

    def __init__(self, model: nn.Module) -> None:
        found = model.canonicalizers if isinstance(model, AdaptedModel) else {}
        self.parameters = {
            path: trained
            for path, canonicalizer in found.items()
            if (trained := [p for p in canonicalizer.parameters() if p.requires_grad])
        }

    def norms(self) -> dict[str, Tensor]:
        """Return the norm of the present gradient at each site, 0 for none, without host synchronisation."""
        return {path: _norm(parameters) for path, parameters in self.parameters.items()}


def _norm(parameters: list[nn.Parameter]) -> Tensor:
    squares = [p.grad.detach().float().square().sum() for p in parameters if p.grad is not None]
    return torch.stack(squares).sum().sqrt() if squares else torch.zeros((), device=parameters[0].device)
