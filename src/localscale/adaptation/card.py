"""The model card of a saved model: what it is, and what was measured."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from localscale.adaptation.model import AdaptedModel
from localscale.adaptation.origin import Origin
from localscale.canonicalizer import Canonicalizer
from localscale.canonicalizer.sizes import SizeEstimator

__all__ = ["CARD_LINE", "is_trained", "write_card"]

CARD_LINE = "library_name: localscale"  # by which a card is known again


def write_card(
    model: AdaptedModel, description: Mapping[str, Any], origin: Origin, saved: set[str], address: str
) -> str:
    """Return the text of the model card; ``address`` is a folder or the id of a repository.

    A card names the published base model if some tensors are still those. timm does not record whether a model was
    made with ``pretrained=True``: if all of its tensors are ``saved``, they may never have been the published ones.
    """
    name, config = origin.name, model.dec_config
    learned = sum(p.numel() for c in model.canonicalizers.values() for p in c.parameters())
    sites = ", ".join(f"`{site}`" for site in model.sites)
    made_with = ", ".join(f"{package} {version}" for package, version in description["versions"].items())
    whole = origin.library == "timm" and saved >= set(model.base_state())
    base = f"base_model: {origin.hub_id}\n" if origin.hub_id and not whole else ""
    given = "" if origin.library else f", base_model)  # base_model: {name} with the weights it had before adapt"
    large = ""
    if model.source_size is not None:
        (height, width), (_, down, across) = model.source_size, model.input_size
        large = f"\n| images, canonical forms | {height}×{width} px, {down}×{across} px |"
    use = ""
    if description["preprocessing"] is not None:
        use = "\nimages = model.preprocessing.transform()(image)[None]  # image: a PIL image"
    return f"""---
{CARD_LINE}
{base}tags: [local-scale-equivariance, canonicalization, deep-equilibrium]
---

# {name} with deep equilibrium canonicalizers

{name}, adapted with [localscale](https://pypi.org/project/localscale/).

{_trained(model)}

{_measured(description["results"])}

| | |
|---|---|
| sites | {sites} |
| family, update | {config.family}, {type(config.update).__name__.lower()} |
| mode, source | {config.mode}, {config.source} |{large}
| canonicalizer parameters | {learned:,} |
| base tensors saved here | {len(saved)} |

```python
import localscale as ls

model = ls.AdaptedModel.from_pretrained("{address}"{given or ")"}{use}
logits = model(images)
```

Made with {made_with}.
"""


def is_trained(canonicalizer: Canonicalizer) -> bool:
    """Return whether a canonicalizer's maps can differ from the identity."""
    if isinstance(canonicalizer.network, SizeEstimator):
        return bool(canonicalizer.network.trust > 0)
    heads = [p for name, p in canonicalizer.network.named_parameters() if name.startswith("to_")]
    return not heads or any(bool(p.any()) for p in heads)


def _trained(model: AdaptedModel) -> str:
    still = [path for path, canonicalizer in model.canonicalizers.items() if not is_trained(canonicalizer)]
    if not still:
        return "The canonicalizers were trained."
    where = "" if len(still) == len(model.canonicalizers) else f" at {', '.join(f'`{path}`' for path in still)}"
    return f"**Not trained:** the canonicalizers{where} leave everything as it is, so nothing is gained by them."


def _measured(results: Mapping[str, Any] | None) -> str:
    if not results:
        return "No results were given when this model was saved: nothing is known about its accuracy or invariance."
    rows = "\n".join(f"| {_cell(name)} | {_cell(value)} |" for name, value in _flat(results))
    return f"Measured, as given when this model was saved:\n\n| | |\n|---|---|\n{rows}"


def _flat(results: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in results.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def _cell(value: object) -> str:
    text = f"{value:.4g}" if isinstance(value, float) else str(value)
    return text.replace("|", "\\|").replace("\n", " ")
