"""``SavedModel``: the part of an adapted model that writes it to folders, checkpoints and the hub, and reads it."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from localscale.adaptation.arguments import first_weight
from localscale.adaptation.state import as_tensor
from localscale.files import path_from

if TYPE_CHECKING:
    from localscale.adaptation.model import AdaptedModel

__all__ = ["SavedModel"]


class SavedModel(nn.Module):
    """An adapted model that can be saved, in files without executable code; abstract."""

    def _adapted(self) -> AdaptedModel:
        """Return the model itself, which is always an ``AdaptedModel``."""
        return self  # type: ignore[return-value]

    def get_extra_state(self) -> Tensor:
        """Return a description of the model for its ``state_dict``, from which ``from_pretrained`` adapts a base.

        So a checkpoint that holds nothing but a ``state_dict``, such as one of transformers' ``Trainer``, is enough.
        """
        from localscale.adaptation.storage import describe_state

        return as_tensor(describe_state(self._adapted()), first_weight(self._adapted().base).device)

    def set_extra_state(self, state: Any) -> None:
        """Ignore the description: it says how to build a model, and this one is built."""

    def save_pretrained(
        self, folder: str | Path, *, results: dict[str, Any] | None = None, include_base: bool = False
    ) -> None:
        """Write ``model.safetensors``, ``config.json`` and a model card.

        ``model.safetensors`` alone holds the model. If the process is killed, it is the old file or the new one.

        For a base of transformers whose preprocessing is known, also write ``preprocessor_config.json``, which
        transformers' ``AutoImageProcessor`` reads.

        The weights are those of the canonicalizers, and all tensors of the base that changed since ``adapt``, for
        example those of a trained head, or that its library does not publish.

        Args:
            folder: the folder to write to.
            results: what was measured, as names and numbers, for the model card; nested dictionaries are allowed.
            include_base: save all tensors of the base, for example if its weights are your own.
        """
        from localscale.adaptation.storage import save

        save(self._adapted(), path_from("folder", folder), results=results, include_base=include_base)

    def push_to_hub(
        self,
        repo_id: str,
        *,
        results: dict[str, Any] | None = None,
        include_base: bool = False,
        private: bool | None = None,
        token: str | None = None,
        message: str = "Upload with localscale",
    ) -> str:
        """Save the model to the Hugging Face Hub as ``repo_id``, ``"user/name"``; return its address.

        ``results`` and ``include_base`` are those of ``save_pretrained``. A new repository is public unless
        ``private``. Log in first, with ``hf auth login``, or pass a ``token``.

        >>> import timm, localscale as ls
        >>> model = ls.adapt(timm.create_model("resnet18"))
        >>> model.push_to_hub("me/resnet18-dec", results={"accuracy": 0.93})  # doctest: +SKIP
        'https://huggingface.co/me/resnet18-dec'
        """
        from localscale.adaptation.hub import upload
        from localscale.adaptation.storage import save

        with tempfile.TemporaryDirectory() as folder:
            save(
                self._adapted(),
                path_from("folder", folder),
                results=results,
                include_base=include_base,
                address=repo_id,
            )
            return upload(Path(folder), repo_id, private=private, token=token, message=message)

    @classmethod
    def from_pretrained(
        cls,
        source: str | Path,
        base_model: nn.Module | None = None,
        *,
        revision: str | None = None,
        token: str | None = None,
    ) -> AdaptedModel:
        """Load a model that ``save_pretrained``, ``push_to_hub`` or transformers' ``Trainer`` wrote.

        Args:
            source: a folder, ``"user/name"`` on the Hugging Face Hub, or a checkpoint of ``Trainer``.
            base_model: the model to adapt, with the weights it had before ``adapt``; by default a model of timm,
                transformers or torchvision is built again, and its published weights are downloaded if needed.
            revision: a branch, tag or commit on the hub.
            token: a token for private models on the hub.

        >>> import localscale as ls
        >>> model = ls.AdaptedModel.from_pretrained("me/resnet18-dec")  # doctest: +SKIP
        """
        from localscale.adaptation.hub import download
        from localscale.adaptation.origin import HUB_ID
        from localscale.adaptation.storage import FILES, load

        folder = path_from("source", source)
        if isinstance(source, str) and not folder.exists() and HUB_ID.fullmatch(source):
            folder = download(source, FILES, revision=revision, token=token)
        return load(folder, base_model, token=token)
