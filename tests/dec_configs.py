"""Short-hand for configurations in tests."""

import dataclasses
from typing import Any

from localscale import Anderson, ConvNetwork, DECConfig, Descent, Picard

SOLVERS = {"anderson": Anderson, "picard": Picard}


def dec_config(**settings: Any) -> DECConfig:
    """Return a ``DECConfig.paper``; fields of its solver, its network and of ``Descent`` may be given flat.

    A solver given by name takes 20 steps at most, unless ``max_steps`` says otherwise.
    """

    def take(kind: type) -> dict[str, Any]:
        return {f.name: settings.pop(f.name) for f in dataclasses.fields(kind) if f.name in settings}

    solver = settings.pop("solver", "anderson")
    if isinstance(solver, str):
        solver = SOLVERS[solver](**{"max_steps": 20, **take(SOLVERS[solver])})
    network = ConvNetwork(**take(ConvNetwork))
    if step := take(Descent):
        settings["update"] = Descent(**step)
    return DECConfig.paper(solver=solver, network=network, **settings)
