"""Call the public functions with odd arguments; only localscale's own errors may come out, and no NaN from numbers."""

from __future__ import annotations

import contextlib
import io
import os
import traceback
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any, ClassVar

import timm
import torch
from torch import Tensor, nn

import localscale as ls
from benchmarks.faults.campaign import Campaign
from benchmarks.faults.odd_values import Odd
from localscale import metrics
from localscale.cli import COMMANDS, main
from localscale.errors import LocalScaleError
from localscale.maps import FAMILIES, FamilyMap, Map, resampling_error

__all__ = ["Calls"]

SIDE = 16


def _warp(o: Odd) -> Any:
    batch, height, width = o.side(), o.side(), o.side()
    layout = o.name(None, None, "NCHW", "NHWC", "NHW", ls.Tokens(height, width, prefix=1))
    mode, sampler = o.name("bilinear", "nearest"), o.name("native", "gather")
    sides: tuple[int, ...] = (batch, 2, height, width)
    if isinstance(layout, ls.Tokens):
        sides = (batch, layout.length, 2)
    elif layout == "NHW" or (layout is None and mode == "nearest"):
        sides = (batch, height, width)
    x, m = o.tensor(*sides), o.map(batch)
    options = {"layout": layout, "mode": mode, "sampler": sampler}
    if o.draw.random() < 0.5:
        return ls.scale(x, m, inverse=o.name("exact", "rowwise"), **options)
    return ls.unscale(x, m, size=o.size(), **options)


def _places(o: Odd) -> Any:
    batch, count = o.side(), o.side()
    move, width = o.draw.choice(((ls.scale_points, 2), (ls.scale_boxes, 4)))
    return move(o.tensor(batch, count, width), o.map(batch), size=o.size())


def _make_map(o: Odd) -> Any:
    batch, family, knots = o.pick((1, 2, 3), (0, -1, 2.5, "2", None, True)), o.name(*FAMILIES), o.knots()
    dtype = o.pick((torch.float32, torch.float64), (torch.float16, torch.int64, None, "float32"))
    if o.draw.random() < 0.3:
        return ls.identity_map(batch, knots, family=family, dtype=dtype)
    options = {"guard": o.number(0.1, 0.03), "temperature": o.number(1.0, 0.5), "strength": o.number(0.5, 2.0)}
    return ls.random_map(batch, knots, family=family, generator=o.rng, dtype=dtype, **options)


def _logits(o: Odd) -> Any:
    batch, columns, rows, family = o.side(), o.side() + 1, o.side() + 1, o.name(*FAMILIES)
    shapes = (((batch, rows, columns - 1), (batch, columns, rows - 1)), ((batch, columns - 1), (batch, rows - 1)))
    dtype = o.draw.choice((torch.float32, torch.float64))
    x, y = (o.tensor(*shape, dtype=dtype) for shape in shapes[family == "separable"])
    return ls.map_from_logits(x, y, family=family, guard=o.number(0.1), temperature=o.number(1.0, 0.3))


def _scales(o: Odd) -> Any:
    sides, dtype = (o.side(), o.side(), o.side()), o.draw.choice((torch.float32, torch.float64))
    scale, weight = o.tensor(*sides, dtype=dtype), o.tensor(*sides, dtype=dtype)
    options = {"background": o.number(0.02, 0.1), "shear": o.number(1.0), "guard": o.number(0.1)}
    return ls.map_from_scales(scale, weight, knots=o.knots(), **options)


def _use_map(o: Odd) -> Any:
    batch = o.side()
    m, points = o.map(batch), o.tensor(batch, o.side(), 2)
    uses: tuple[Callable[[], Any], ...] = (
        lambda: m(points),
        lambda: m.inverse(o.name("exact", "rowwise"))(points),
        lambda: m.jacobian(points),
        lambda: m.local_scale(points),
        lambda: m @ o.map(batch),
        lambda: m.to(dtype=o.pick((torch.float32, torch.float64, None), (torch.float16, torch.int64))),
        lambda: m.mean_displacement(),
        lambda: m.min_determinant(),
        lambda: resampling_error(m, o.knots(), size=5),
    )
    return o.draw.choice(uses)()


def _resample(o: Odd) -> Any:
    batch = o.side()
    m, guard = o.family_map(batch), o.pick((None, 0.1))
    if o.draw.random() < 0.5:
        return m.resample(o.knots(), guard=guard)  # type: ignore[attr-defined]
    inner = o.family_map(batch) if not o.odd() else o.family_map(batch).to("meta")
    return m.compose_resampled(inner, guard=guard) if type(m) is type(inner) else None


def _solve(o: Odd) -> Any:
    functions: tuple[Callable[[Any], Any], ...] = (lambda z: 0.5 * z + 1, torch.cos, lambda z: 0 * z, lambda z: -z)
    odd: tuple[Callable[[Any], Any], ...] = (
        lambda z: z.double(),
        lambda z: z[:1],
        lambda z: None,
        lambda z: z.to("meta"),
        lambda z: z / 0,
        lambda z: 2,
    )
    f = functions[o.draw.randrange(4)] if not o.odd() else odd[o.draw.randrange(6)]
    o.finite = o.finite and f in functions
    steps = {"max_steps": o.pick((3, 8), (0, -1)), "tolerance": o.number(1e-4), "fixed_steps": o.draw.random() < 0.3}
    solvers = (lambda: ls.Anderson(**steps), lambda: ls.Picard(**steps), lambda: o.name("anderson", "picard"))
    gradient, policy = o.name("implicit", "phantom(2)", "unrolled"), o.name("warn", "identity", "raise")
    start = o.tensor(o.side(), o.side())
    if start.device.type == "meta" or start.is_complex():
        start = torch.zeros(2, 3)
    return ls.fixed_point(f, start, solver=o.draw.choice(solvers)(), gradient=gradient, on_failure=policy)


def _errors(o: Odd) -> Any:
    batch, classes, height, width = o.side(), o.side(), o.side(), o.side()
    variant = o.name("squared", "l2")
    if o.draw.random() < 0.5:
        return metrics.invariance_error(o.tensor(batch, classes), o.tensor(batch, 2, classes), variant=variant)
    one, two = (o.tensor(batch, classes, height, width) for _ in range(2))
    return metrics.equivariance_error(one, two, o.map(batch), variant=variant)


def _labels(o: Odd) -> Any:
    o.finite = False  # the IoU of an image without objects is documented as NaN
    batch, height, width = o.side(), o.side(), o.side()
    classes = o.pick((1, 2, 3), (0, -1, 2.5, "3", None))
    labels = o.tensor(batch, height, width, integers=3)
    if o.draw.random() < 0.3:
        return metrics.equivariance_floor(labels, o.map(batch), classes)
    predicted = o.tensor(batch, height, width, integers=3)
    ignored = o.pick((None, 0, -100, 255))
    if o.draw.random() < 0.5:
        return metrics.image_iou(
            predicted, labels, classes, background=o.pick((0, None), (1, 7, -1)), ignore_index=ignored
        )
    metric = metrics.SmallObjectIoU(classes, o.pick((49, 4), (0, -1)), ignore_index=ignored)
    metric.update(predicted, labels)
    return metric.compute()


def _accuracy(o: Odd) -> Any:
    o.finite = False  # the accuracy at a scale without images is documented as NaN
    batch, classes = o.side(), o.side()
    logits, labels, scales = o.tensor(batch, classes), o.tensor(batch, integers=classes), o.tensor(batch)
    if o.draw.random() < 0.4:
        return metrics.per_scale_accuracy(logits, labels, scales)
    if o.draw.random() < 0.5:
        metric = metrics.top1(classes)
        metric.update(logits, labels)
        return metric.compute()
    iou = metrics.mean_iou(classes, ignore_index=o.pick((None, 0, -100)))
    maps = (o.tensor(batch, 3, 2, integers=classes) for _ in range(2))
    iou.update(*maps)
    return iou.compute()


def _spread(o: Odd) -> Any:
    batch, count = o.side(), o.side() + 1
    corner = o.tensor(batch, count, 4)
    boxes = torch.cat((corner[..., :2] / 2, corner[..., :2] * 0.75 + 0.1), dim=-1) if corner.dim() else corner
    m = o.map(batch)
    if "meta" in (m.device.type, boxes.device.type):  # boxes are moved to the map's device, and the answer to the host
        return None
    return metrics.size_spread(m, boxes)


def _settings(o: Odd) -> Any:
    odd = o.number
    kinds: tuple[Callable[[], Any], ...] = (
        lambda: ls.Anderson(max_steps=odd(5), tolerance=odd(1e-3), history=odd(3), damping=odd(1.0), ridge=odd(1e-6)),
        lambda: ls.Picard(max_steps=odd(5), tolerance=odd(1e-3), damping=odd(1.0), fixed_steps=o.pick((True,), ("x",))),
        lambda: ls.Phantom(steps=odd(2), damping=odd(0.5)),
        lambda: ls.Descent(step_size=odd(1.0)),
        lambda: ls.SizeNetwork(width=odd(8), blocks=odd(1), target=odd(0.5), most=odd(2.0), weight=o.name("edges")),
        lambda: ls.ConvNetwork(channels=o.pick(((8,),), ((), (2.5,), "x", 3)), resolution=odd(8)),
        lambda: ls.DECConfig.paper(
            sites=o.pick((("input",),), ((), ("",), (3,), None)),
            knots=o.knots(),
            family=o.name("grid", "separable"),
            update=o.name("direct", "compose", "descent"),
            temperature=odd(1.0),
            guard=odd(0.1),
            mode=o.name("invariant", "equivariant"),
        ),
        lambda: ls.DECConfig.of(o.pick(({"knots": 4},), ({"knot": 4}, "/nope", "", {"solver": {}}, 3, [], {3: 4}))),
        lambda: ls.Site(
            o.pick(("blocks.0",), ("", 3)), layout=o.name("NCHW", "tokens"), prefix=odd(0), stride=o.size()
        ),
    )
    return o.draw.choice(kinds)()


def _read(o: Odd) -> Any:
    path = o.draw.choice(("", "/nope", "\0", "a" * 5000, "/dev/null", "/proc/self", ".", "ü\n", "folder/../x"))
    kinds = (lambda: ls.AdaptedModel.from_pretrained(path, nn.Conv2d(3, 4, 3)), lambda: ls.DECConfig.of(path))
    if path and not path.startswith(("/", ".", "\0")):  # other names would be looked up on the hub
        return kinds[1]()
    return o.draw.choice(kinds)()


class Calls(Campaign):
    """One call with arguments drawn from the seed."""

    name = "calls"
    about = "fuzzed calls of the library and the command line"
    goal = 50_000
    share = 4.0
    patience = 20.0
    models: ClassVar[dict[str, ls.AdaptedModel]] = {}
    canonicalizers: ClassVar[list[ls.Canonicalizer]] = []
    base: ClassVar[nn.Module]

    def prepare(self, folder: Path) -> None:
        """Make the models that are called, and the folder in which commands run."""
        torch.set_num_threads(1)
        type(self).folder = folder
        with torch.random.fork_rng():
            torch.manual_seed(0)
            for name, config in {
                "paper": ls.DECConfig.paper(network=ls.ConvNetwork(channels=(8,), resolution=8)),
                "sizes": ls.DECConfig(network=ls.SizeNetwork(width=8, blocks=0, resolution=8), knots=3),
                "inside": ls.DECConfig.paper(sites=("2",), knots=3, mode="equivariant"),
            }.items():
                layers = (nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 4, 3, padding=1))
                model = ls.adapt(nn.Sequential(*layers), config, input_size=(3, SIDE, SIDE)).eval()
                self.models[name] = model
            self.canonicalizers[:] = [next(iter(model.canonicalizers.values())) for model in self.models.values()]
        type(self).base = timm.create_model("test_resnet", num_classes=3)

    folder: ClassVar[Path]

    def trial(self, draw: Random) -> str | None:
        o, kind = Odd(draw), draw.random()
        targets: tuple[Callable[[Odd], Any], ...] = (
            *(_warp, _warp, _places, _make_map, _logits, _scales, _use_map, _use_map, _resample, _solve),
            *(_errors, _labels, _accuracy, _spread, _settings, _settings, _read),
        )
        call = draw.choice(targets)
        if kind < 0.004:
            return self._command(draw)
        if kind < 0.06:
            call = draw.choice((self._model, self._canonicalize))
        elif kind < 0.07:
            call = self._adapt
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                result = call(o)
                lost = o.finite and any(bool(x.isnan().any()) for x in _tensors(result))
        except LocalScaleError:
            return None
        except TypeError as error:
            return None if o.mistyped else f"{call.__name__}: {_described(error)}"
        except Exception as error:
            return f"{call.__name__}: {_described(error)}"
        return f"{call.__name__} made NaN of finite arguments" if lost else None

    def _model(self, o: Odd) -> Any:
        model = o.draw.choice(list(self.models.values()))
        images = o.tensor(o.side(), 3, o.draw.choice((SIDE, 9)), o.draw.choice((SIDE, 12)))
        with torch.set_grad_enabled(o.draw.random() < 0.2):
            return model(images, return_report=o.draw.random() < 0.5)

    def _canonicalize(self, o: Odd) -> Any:
        canonicalizer = o.draw.choice(self.canonicalizers)
        return canonicalizer(o.tensor(o.side(), canonicalizer.in_channels, o.side(), o.side())).map

    def _adapt(self, o: Odd) -> Any:
        odd = (32, (3, 0, 0), (3, 32), (3, 2.5, 8), "chw", (1, 8, 8), (3, -1, 8), (), 0, False)
        size = o.pick((None, (3, SIDE, SIDE)), odd)
        if o.draw.random() < 0.5:
            return len(ls.sites(self.base, size)) and None
        config = ls.DECConfig.paper(sites=o.pick((("input",), ("layer1",)), (("nope",), ("",), ("conv1.0", "conv1.0"))))
        source = o.pick((None, 2 * SIDE), (0, "x", (3,), 2.5, (1, 1)))
        ls.adapt(self.base, config, input_size=size, source_size=source).unwrap()
        return None

    def _command(self, draw: Random) -> str | None:
        """Run a command line in process; it may only end with an exit status."""
        words = ("--help", "--", "-1", "nope", "", "--nope", "--seeds", "0", "--count", "--out", "\0", "x=y", "--json")
        name = draw.choice([*(name for name in COMMANDS if name != "app"), "nope", "-h"])
        rest = [draw.choice(words) for _ in range(draw.randrange(4))]
        if name in ("data", "tables", "recipes", "version") and not {"--help", "--nope"} & set(rest):
            rest.append("--nope")  # without a fault these commands would do their work
        with _quiet(self.folder):
            try:
                main([name, *rest])
            except SystemExit:
                return None
            except Exception as error:
                return f"localscale {name} {rest}: {_described(error)}"
        return None


def _described(error: Exception) -> str:
    """Return the error and the deepest line of localscale that it came through."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if f"localscale{os.sep}" in f.filename]
    where = f"{Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else "the call"
    return f"{type(error).__name__} at {where}: {' '.join(str(error).split())[:150]}"


def _tensors(result: Any) -> Iterator[Tensor]:
    """Yield the tensors in a result whose values can be read."""
    if isinstance(result, Tensor):
        if result.device.type != "meta" and result.is_floating_point():
            yield result
    elif isinstance(result, FamilyMap):
        yield from _tensors(result.logits()[0] * 0 if result.device.type == "meta" else result.displacement_field(3, 4))
    elif isinstance(result, Map):
        yield from _tensors(result.displacement_field(3, 4))
    elif isinstance(result, ls.Solution):
        yield from _tensors(result.value)
    elif isinstance(result, tuple | list):
        for part in result:
            yield from _tensors(part)


@contextlib.contextmanager
def _quiet(folder: Path) -> Iterator[None]:
    """Run in ``folder`` without output."""
    before = Path.cwd()
    os.chdir(folder)
    try:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            yield
    finally:
        os.chdir(before)
