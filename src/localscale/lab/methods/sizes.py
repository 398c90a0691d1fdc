"""The size equilibrium: learn the sizes of things without labels, then train the backbone on canonical forms."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from torch import Tensor, nn

from localscale.adaptation import AdaptedModel, adapt, learn_sizes
from localscale.canonicalizer import Compose, DECConfig, SizeNetwork
from localscale.canonicalizer.site import INPUT
from localscale.equilibrium import Picard
from localscale.errors import ConfigError
from localscale.lab.methods.dec import site_scalars
from localscale.lab.methods.method import Criterion, Method, check_mode
from localscale.lab.randomness import Draws

__all__ = ["SizeEquilibrium", "size_config"]


def size_config() -> DECConfig:
    """Return the configuration of the tables: one canonicalizer at the image, exactly eight solver steps."""
    solver = Picard(max_steps=8, tolerance=1e-3, fixed_steps=True)
    return DECConfig(knots=14, update=Compose(), network=SizeNetwork(), solver=solver, guard=0.03)


@dataclass(frozen=True)
class SizeEquilibrium(Method):
    """Scale the things in an image to one size before the backbone sees it."""

    config: DECConfig = field(default_factory=size_config)
    """Settings of the canonicalizer at the image."""
    learning_steps: int = 1000
    """Steps of learning sizes without labels before the backbone is trained."""
    along: float = 0.0
    """Weight of the size loss while the backbone is trained; 0 keeps the size network fixed."""

    def check(self) -> None:
        if not isinstance(self.config.network, SizeNetwork) or INPUT not in self.config.sites:
            raise ConfigError('the size equilibrium needs a SizeNetwork at the site "input"')
        if self.learning_steps < 0 or self.along < 0:
            raise ConfigError(
                f"--method.learning-steps is {self.learning_steps} and --method.along {self.along}; expected 0 or more"
            )

    def check_answers(self, *, dense: bool) -> None:
        check_mode(self.config.mode, dense=dense)

    def build(self, backbone: nn.Module) -> AdaptedModel:
        model = adapt(backbone, self.config)
        if not self.along:
            model.size_canonicalizer().requires_grad_(False)
        return model

    def prepare(self, model: nn.Module, batches: Iterable[Tensor], *, progress: bool) -> None:
        assert isinstance(model, AdaptedModel)
        if self.learning_steps:
            learn_sizes(model, batches, steps=self.learning_steps, progress=progress)

    def losses(
        self, model: nn.Module, images: Tensor, labels: Tensor, criterion: Criterion, draws: Draws
    ) -> dict[str, Tensor]:
        assert isinstance(model, AdaptedModel)
        logits, report = model(images, return_report=True)
        task = criterion(logits, labels)
        found = {"loss": task, "task": task} | site_scalars(report)
        if self.along:
            found["sizes"] = model.size_loss(images)
            found["loss"] = task + self.along * found["sizes"]
        return found
