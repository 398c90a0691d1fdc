"""Train an adapted model with Lightning: sizes first, then the classifier, with a checkpoint that loads again.

Run from the repository root: ``.venv/bin/python examples/train_with_lightning.py``
It needs ``pip install lightning``, and writes the folder ``lightning_run`` into the current directory.
"""

from pathlib import Path

import lightning
import timm
import torch
import torch.nn.functional as F
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset

import localscale as ls

FOLDER = Path("lightning_run")


class Classifier(lightning.LightningModule):
    """An adapted classifier; its size network is frozen while the backbone learns."""

    def __init__(self, backbone: str, classes: int, size: int) -> None:
        super().__init__()
        self.save_hyperparameters()
        base = timm.create_model(backbone, num_classes=classes)  # yours: pretrained=True
        sizes = ls.SizeNetwork(width=16, blocks=1, resolution=size)  # small, for small images
        self.model = ls.adapt(base, ls.DECConfig(knots=8, network=sizes), input_size=(3, size, size))
        self.model.size_canonicalizer().requires_grad_(False)

    def training_step(self, batch: list[Tensor], _: int) -> Tensor:
        """Return the task's loss."""
        images, labels = batch
        loss = F.cross_entropy(self.model(images), labels)
        self.log("train_loss", loss)
        return loss

    def validation_step(self, batch: list[Tensor], _: int) -> None:
        """Log the accuracy, and how far the maps move points."""
        images, labels = batch
        logits, report = self.model(images, return_report=True)
        self.log("accuracy", (logits.argmax(1) == labels).float().mean(), prog_bar=True)
        self.log("displacement", report["input"].map.mean_displacement().mean())

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Return an optimizer of what is trained."""
        return torch.optim.AdamW((p for p in self.parameters() if p.requires_grad), lr=3e-3)


def make_loader(count: int) -> DataLoader:
    """Return batches of 48 px images of a ring or a disc of random size, and their labels."""
    labels, radius = torch.randint(2, (count,)), 0.08 + 0.22 * torch.rand(count, 1, 1)
    x, y = torch.linspace(-0.5, 0.5, 48), torch.linspace(-0.5, 0.5, 48)[:, None]
    distance = (x.square() + y.square()).sqrt() / radius
    hole = (distance < 0.6) & (labels == 0)[:, None, None]
    images = ((distance < 1) & ~hole).float()[:, None].repeat(1, 3, 1, 1)
    return DataLoader(TensorDataset(images, labels), batch_size=16)


def main() -> None:
    """Learn sizes, train for four epochs, and load the checkpoint."""
    lightning.seed_everything(0)
    train, validation = make_loader(256), make_loader(64)
    module = Classifier("resnet10t", classes=2, size=48)
    print(ls.learn_sizes(module.model, train, steps=100, progress=False))
    saved = ModelCheckpoint(FOLDER, filename="best", monitor="accuracy", mode="max", enable_version_counter=False)
    trainer = lightning.Trainer(
        max_epochs=4, accelerator="cpu", callbacks=[saved], logger=False, enable_progress_bar=False
    )
    trainer.fit(module, train, validation)
    again = Classifier.load_from_checkpoint(saved.best_model_path)
    trainer.validate(again, validation)


if __name__ == "__main__":
    main()
