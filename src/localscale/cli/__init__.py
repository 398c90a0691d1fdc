"""The command line: ``localscale COMMAND [options]``.

Each command is loaded when it is called, so that ``localscale --help`` loads neither PyTorch nor tyro.
"""

from __future__ import annotations

import logging
import os
import shlex
import sys
from importlib import import_module, metadata
from pathlib import Path

from localscale.errors import ConfigError, LocalScaleError, near_misses

__all__ = ["main"]

COMMANDS = {
    "data": ("localscale.cli.data:Data", "make, fetch and show the locally scaled datasets"),
    "recipes": ("localscale.cli.training:Recipes", "show the rows, backbones and tables that can be trained"),
    "train": ("localscale.cli.training:Train", "fine-tune on your own photographs, or train one recipe"),
    "evaluate": ("localscale.cli.training:Evaluate", "measure a finished run again, on the same or other data"),
    "predict": (
        "localscale.cli.predict:Predict",
        "name the classes of images or of their pixels, and write canonical forms",
    ),
    "reproduce": ("localscale.cli.training:Reproduce", "train every cell of a table and write results/TABLE.json"),
    "tables": ("localscale.cli.training:Tables", "render results/*.json as docs/results.md and docs/paper.md"),
    "figure": ("localscale.cli.figures:Figure", "draw a figure from data, finished runs or results"),
    "report": ("localscale.cli.report:Report", "write one HTML page about a finished run"),
    "app": ("localscale.cli.app:App", "open a page in the browser that scales parts of an image"),
    "version": ("", "print the versions of localscale and of the packages it uses"),
}
PACKAGES = ("localscale", "torch", "torchvision", "timm", "accelerate", "transformers", "ray")


def main(arguments: list[str] | None = None) -> None:
    """Run the command line. An expected error ends it with one sentence and exit status 1."""
    logging.basicConfig(level=logging.WARNING, format="%(message)s", stream=sys.stderr)
    given = sys.argv[1:] if arguments is None else arguments
    try:
        _run(given)
        sys.stdout.flush()
    except LocalScaleError as error:
        raise SystemExit(f"localscale: {error}") from None
    except BrokenPipeError:  # the reader, such as head, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise SystemExit(141) from None
    except KeyboardInterrupt:
        print(f"\nlocalscale: stopped{_how_to_continue(given)}", file=sys.stderr)
        raise SystemExit(130) from None


def _how_to_continue(given: list[str]) -> str:
    """Return the words after "stopped" that name the command that goes on, if there is one."""
    first = _split_imports(given)[1][:1]
    if first == ["train"]:
        command = ["localscale", *given, *([] if "--resume" in given else ["--resume"])]
        return f"; this command continues: {shlex.join(command)}"
    return "; run the same command again to continue" if first in (["data"], ["reproduce"]) else ""


def _split_imports(given: list[str]) -> tuple[list[str], list[str]]:
    """Return the modules that ``--import`` names, anywhere among the arguments, and the other arguments."""
    arguments, names, left = iter(given), list[str](), list[str]()
    for argument in arguments:
        flag, equals, name = argument.partition("=")
        if flag == "--import":
            names.append(name if equals else next(arguments, ""))
        else:
            left.append(argument)
    return names, left


def _import_modules(names: list[str]) -> None:
    """Import modules that are installed or in this folder."""
    if names and str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    for name in names:
        expected = "expected a module that is installed or in this folder, without .py"
        if not name or name.startswith((".", "-")):
            raise ConfigError(f"--import {name!r} names no module; {expected}")
        try:
            import_module(name)
        except ImportError as error:  # other errors are faults of the module, and their traceback shows where
            missing = isinstance(error, ModuleNotFoundError) and f"{name}.".startswith(f"{error.name}.")
            raise ConfigError(f"--import {name}: {error}{f'; {expected}' if missing else ''}") from error


def _run(given: list[str]) -> None:
    modules, given = _split_imports(given)
    _import_modules(modules)
    if not given or given[0] in ("-h", "--help"):
        print(_help())
        return
    name, *rest = given
    if name not in COMMANDS:
        raise ConfigError(f"no command {name!r}: {near_misses(name, COMMANDS)}; localscale --help lists all")
    home, sentence = COMMANDS[name]
    if not home:
        print("\n".join(f"{package} {_version(package)}" for package in PACKAGES))
        return
    module, _, kind = home.partition(":")
    commands = import_module(module)
    if name in ("train", "evaluate") and rest and not rest[0].startswith("-"):
        # The options depend on the recipe or run that is named first.
        getattr(commands, f"parse_{name}")(rest[0], rest[1:]).run()
        return
    import tyro

    tyro.cli(
        tyro.conf.OmitSubcommandPrefixes[tyro.conf.OmitArgPrefixes[getattr(commands, kind)]],  # type: ignore[misc]
        prog=f"localscale {name}",
        description=f"{sentence[0].upper()}{sentence[1:]}.",
        args=rest,
    ).run()


def _help() -> str:
    lines = [f"  {name:{max(map(len, COMMANDS))}}  {sentence}" for name, (_, sentence) in COMMANDS.items()]
    return "\n".join(
        (
            "usage: localscale COMMAND [options]",
            "",
            "Vision models that stay consistent when parts of an image change size.",
            "",
            *lines,
            "",
            "localscale COMMAND --help shows the options of a command.",
            "--import MODULE, with any command, first imports a module of yours, such as one that registers a task.",
        )
    )


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "(not installed)"
