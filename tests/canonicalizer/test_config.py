"""``DECConfig``: a frozen value that survives JSON and refuses what it does not know."""

import copy
import dataclasses
import json
import pickle
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import tyro

from localscale.canonicalizer import Compose, ConvNetwork, DECConfig, Descent, Direct, Site, SizeNetwork
from localscale.equilibrium import Anderson, Implicit, Phantom, Picard, Unrolled
from localscale.errors import ConfigError, MapError

TWO = ("input", "blocks.0")
OTHER = {
    "sites": ("input", Site("blocks.0", layout="tokens", channels=192, prefix=1, stride=(16, 8))),
    "knots": 5,
    "family": "separable",
    "update": Descent(0.25),
    "source": "image",
    "mode": "equivariant",
    "network": ConvNetwork((8, 16, 32), 28),
    "temperature": 0.5,
    "guard": None,
    "solver": Picard(7, 1e-3, 0.75, fixed_steps=True),
    "gradient": Implicit(Anderson(3)),
    "on_failure": "identity",
    "detached": ("input",),
}
FIELDS = [field.name for field in dataclasses.fields(DECConfig)]


def test_the_default_is_the_size_equilibrium():
    config = DECConfig()
    assert (config.sites, config.knots, config.family) == (("input",), 14, "grid")
    assert (config.update, config.network) == (Compose(), SizeNetwork())
    assert (config.guard, config.gradient, config.on_failure) == (0.03, Implicit(), "warn")
    assert config.solver == Picard(max_steps=6, tolerance=1e-3, fixed_steps=True)


def test_the_paper_is_one_call_away():
    """App. A1: two layers of 64 and 128; no fold, exact gradients, the input alone."""
    config = DECConfig.paper()
    assert (config.sites, config.knots) == (("input",), 6)
    assert config.network == ConvNetwork(channels=(64, 128), resolution=None)
    assert (config.family, config.update, config.source, config.mode) == ("grid", Direct(), "latent", "invariant")
    assert (config.guard, config.gradient, config.on_failure) == (0.1, Implicit(), "warn")
    assert config.solver == Anderson(max_steps=20, tolerance=1e-4, history=5)
    assert DECConfig.paper(knots=4, update="descent") == dataclasses.replace(config, knots=4, update=Descent())
    assert DECConfig.from_json(config.to_json()) == config


@pytest.mark.parametrize(
    ("name", "given", "value"),
    [
        ("update", "compose", Compose()),
        ("update", {"kind": "descent", "step_size": 0.5}, Descent(0.5)),
        ("network", "conv", ConvNetwork()),
        ("network", {"kind": "conv", "channels": [8]}, ConvNetwork((8,))),
        ("solver", "picard", Picard()),
        ("solver", {"kind": "anderson", "history": 3}, Anderson(history=3)),
        ("gradient", "unrolled", Unrolled()),
        ("gradient", "phantom(3)", Phantom(3)),
        ("gradient", {"kind": "implicit", "adjoint": {"kind": "picard"}}, Implicit(Picard())),
    ],
)
def test_names_and_dictionaries_become_values(name: str, given: object, value: object):
    config = DECConfig.paper(**{name: given})
    assert getattr(config, name) == value
    assert config == DECConfig.paper(**{name: value})


@pytest.mark.parametrize("name", FIELDS)
def test_every_field_survives_json(name: str):
    assert getattr(DECConfig.paper(), name) != OTHER[name]
    config = DECConfig.paper(**{name: OTHER[name]})
    again = DECConfig.from_json(config.to_json())
    assert again == config
    assert getattr(again, name) == OTHER[name]
    assert hash(again) == hash(config)


def test_all_fields_together_survive_json_pickle_and_copy():
    config = DECConfig(**OTHER)
    assert DECConfig.from_json(config.to_json()) == config
    assert pickle.loads(pickle.dumps(config)) == config
    assert copy.deepcopy(config) == config
    assert dataclasses.replace(config, knots=4).knots == 4


def test_a_command_line_overrides_nested_fields():
    arguments = ["--solver.max-steps", "4", "--network.channels", "8", "16", "--sites", "input", "blocks.0"]
    config = tyro.cli(DECConfig, default=DECConfig.paper(), args=arguments)
    assert config == DECConfig.paper(sites=TWO, solver=Anderson(4), network=ConvNetwork((8, 16)))
    descent = DECConfig.paper(solver=Picard(), update="descent")
    config = tyro.cli(DECConfig, default=descent, args=["--update.step-size", "2"])
    assert config == DECConfig.paper(solver=Picard(), update=Descent(2.0))
    config = tyro.cli(DECConfig, default=DECConfig(), args=["--network.target", "0.3", "--solver.no-fixed-steps"])
    assert config == DECConfig(network=SizeNetwork(target=0.3), solver=Picard(max_steps=6, tolerance=1e-3))


@pytest.mark.parametrize("knots", [4, (6, 4), ((6, 4), 5), ((6, 4), (3, 2)), [6, [4, 3]]])
def test_knots_of_every_kind_survive_json(knots: object):
    config = DECConfig(sites=TWO, knots=knots)
    assert DECConfig.from_json(config.to_json()) == config
    assert isinstance(hash(config), int), "lists became tuples"


def test_knots_at_a_site_are_a_pair():
    assert [DECConfig(sites=TWO, knots=5).knots_at(i) for i in (0, 1)] == [(5, 5), (5, 5)]
    assert [DECConfig(sites=TWO, knots=(6, 4)).knots_at(i) for i in (0, 1)] == [(6, 6), (4, 4)]
    assert [DECConfig(sites=TWO, knots=((6, 4), 3)).knots_at(i) for i in (0, 1)] == [(6, 4), (3, 3)]


def test_to_dict_holds_plain_values_only():
    values = DECConfig(**OTHER).to_dict()
    assert json.loads(json.dumps(values)) == values
    assert values["sites"][1] == {
        "path": "blocks.0",
        "layout": "tokens",
        "channels": 192,
        "prefix": 1,
        "stride": [16, 8],
    }


def test_sites_are_read_from_paths_objects_and_dictionaries():
    plain = DECConfig(sites=("blocks.0",))
    assert DECConfig(sites="blocks.0") == plain
    assert DECConfig(sites=Site("blocks.0")) == plain
    assert DECConfig(sites=[{"path": "blocks.0"}]) == plain
    assert plain.sites == ("blocks.0",), "a site that is all defaults is its path"
    full = Site("blocks.0", layout="NCHW", channels=3)
    assert DECConfig(sites=(full,)).sites == (full,)


# Unknown names.


@pytest.mark.parametrize(
    "build", [lambda values: DECConfig(**values), lambda values: DECConfig.paper(**values), DECConfig.from_dict]
)
def test_unknown_keys_name_the_near_misses(build):
    with pytest.raises(ConfigError, match=r"^DECConfig has no field 'knot': did you mean knots\?$"):
        build({"knot": 4})
    with pytest.raises(ConfigError, match=r"^DECConfig has no field 'zzz': known: sites, knots, family"):
        build({"zzz": 4})
    with pytest.raises(ConfigError, match=r"^Anderson has no field 'tolerence': did you mean tolerance\?$"):
        build({"solver": {"kind": "anderson", "tolerence": 4}})


@pytest.mark.parametrize(
    ("name", "value", "sentence"),
    [
        ("family", "seperable", r"family is 'seperable': did you mean separable\?"),
        ("family", "affine", "family is 'affine': known: grid, separable"),
        ("update", "composed", r"update is 'composed': did you mean compose\?"),
        ("update", "optim", "update is 'optim': known: direct, compose, descent"),
        ("source", "images", r"source is 'images': did you mean image\?"),
        ("mode", "equivarient", r"mode is 'equivarient': did you mean equivariant, invariant\?"),
        ("on_failure", "rais", r"on_failure is 'rais': did you mean raise\?"),
        ("solver", "andersen", r"solver is 'andersen': did you mean anderson\?"),
        ("solver", "broyden", "solver is 'broyden': known: anderson, picard"),
        ("gradient", "implict", r"gradient is 'implict': did you mean implicit\?"),
        ("gradient", "phantom(0)", "phantom steps is 0; expected at least 1"),
        ("gradient", Anderson(), "gradient is Anderson"),
        ("solver", {"max_steps": 3}, "solver is None: known: anderson, picard"),
        ("solver", {"kind": "anderson", "max_steps": 0}, "max_steps is 0; expected at least 1"),
        ("update", {"kind": "descent", "step_size": -1.0}, r"step_size is -1\.0; expected a finite number"),
        ("network", {"kind": "conv", "channels": (64, 0)}, r"channels is \(64, 0\); expected at least one positive"),
        ("network", {"kind": "conv", "resolution": 1}, "resolution is 1; expected at least 2 pixels"),
        ("temperature", 0.0, r"temperature is 0\.0; expected a finite number, at least 0\.001"),
        ("temperature", -1.0, r"temperature is -1\.0; expected a finite number, at least 0\.001"),
        ("guard", 0.0, r"guard is 0\.0; expected a determinant strictly between 0 and 1, or None"),
        ("guard", 1.0, r"guard is 1\.0; expected a determinant strictly between 0 and 1, or None"),
        ("sites", (), r'sites is empty; name at least one, for example sites=\("input",\)'),
        ("sites", ("a", "b", "a"), "sites names a more than once"),
        ("sites", ("b", Site("b", channels=3), "a", "a"), "sites names a, b more than once"),
        ("sites", (3,), r'a site is 3; expected a dotted path, a Site, or \{"path": …\}'),
        ("sites", ({"layout": "NCHW"},), r"a site is .*; expected a dotted path, a Site, or"),
        ("sites", ({"path": "a", "chanels": 3},), r"a site has no field 'chanels': did you mean channels\?"),
        ("knots", (6, 4), "knots has 2 entries for 1 sites; expected one per site, or a single integer for all"),
        ("knots", (), "knots has 0 entries for 1 sites; expected one per site, or a single integer for all"),
    ],
)
def test_every_value_out_of_range_is_named(name: str, value: object, sentence: str):
    for build in (lambda v: DECConfig(**v), DECConfig.from_dict):
        with pytest.raises(ConfigError, match=f"^{sentence}"):
            build({name: value})


@pytest.mark.parametrize(
    ("knots", "sentence"),
    [
        (1, "a map needs at least 2 control points along each axis"),
        ((6, 1), "knots is 1; a map needs at least 2"),
        (((6, 1), 6), r"knots is \(6, 1\); a map needs at least 2"),
    ],
)
def test_knots_that_make_no_map(knots: object, sentence: str):
    with pytest.raises(MapError, match=sentence):
        DECConfig(sites=TWO, knots=knots)


def test_fixed_steps_cannot_raise():
    with pytest.raises(ConfigError, match=r'^on_failure="raise" reads the result on the host'):
        DECConfig(on_failure="raise", solver=Anderson(fixed_steps=True))
    with pytest.raises(ConfigError, match=r"or a solver without it, such as solver=Picard\(max_steps=6"):
        DECConfig(on_failure="raise")
    assert DECConfig(on_failure="raise", solver=Picard(max_steps=6, tolerance=1e-3)).on_failure == "raise"


@pytest.mark.parametrize(
    ("name", "value", "first"),
    [
        ("update", "direct", 'update="compose"'),
        ("update", "descent", 'update="compose"'),
        ("family", "separable", 'family="grid"'),
    ],
)
def test_what_a_size_network_cannot_do_names_two_remedies(name: str, value: str, first: str):
    with pytest.raises(ConfigError, match=f"^{name} is ") as found:
        DECConfig(**{name: value})
    assert first in str(found.value)
    assert f'DECConfig.paper({name}="{value}")' in str(found.value)
    assert DECConfig.paper(**{name: value}).network == ConvNetwork()


@pytest.mark.parametrize("name", ["temperature", "guard"])
def test_not_a_number_is_refused(name: str):
    """NaN passes every comparison that asks whether a value is too small."""
    with pytest.raises(ConfigError, match=f"^{name} is nan; expected"):
        DECConfig(**{name: float("nan")})


# Configurations from a file.


@pytest.mark.parametrize("value", [None, 3, "grid", ["input"]])
def test_a_configuration_is_a_dictionary(value: object):
    with pytest.raises(ConfigError, match=f"^a configuration is {type(value).__name__}; expected a dictionary of DEC"):
        DECConfig.from_dict(value)


def test_values_of_the_wrong_type():
    network, solver = {"kind": "conv", "channels": 64}, {"kind": "picard", "tolerance": None}
    for wrong in ({"network": network}, {"solver": solver}, {"knots": 6.5}, {"family": ["grid"]}):
        with pytest.raises(ConfigError, match=r"^\w+ is .*; expected|^family is \['grid'\]: known"):
            DECConfig.from_dict(wrong)


@pytest.mark.parametrize(
    ("build", "sentence"),
    [
        (lambda: DECConfig(temperature="warm"), "temperature is 'warm'; expected a number"),
        (lambda: DECConfig(temperature=True), "temperature is True; expected a number"),
        (lambda: DECConfig(knots=True), "knots is True; expected an integer or a tuple"),
        (lambda: DECConfig(knots=6.5), "knots is 6.5; expected an integer or a tuple"),
        (lambda: DECConfig(sites=TWO, knots=((6, 4, 2), 6)), r"knots is \(\(6, 4, 2\), 6\); expected"),
        (lambda: DECConfig(sites=3), "sites is 3; expected a tuple of dotted module paths"),
        (lambda: DECConfig(detached=3), r"detached is 3; expected a tuple \(a text, …\)"),
        (lambda: DECConfig(guard="x"), "guard is 'x'; expected a number or None"),
        (lambda: DECConfig(mode=["invariant"]), r"mode is \['invariant'\]; expected a text"),
        (lambda: SizeNetwork(resolution=64.5), "resolution is 64.5; expected an integer or None"),
        (lambda: SizeNetwork(width="64"), "width is '64'; expected an integer"),
        (lambda: SizeNetwork(shrink=1), "shrink is 1; expected True or False"),
        (lambda: ConvNetwork(channels=(2.5,)), r"channels is \(2.5,\); expected a tuple \(an integer, …\)"),
        (lambda: ConvNetwork(channels=64), "channels is 64; expected a tuple"),
        (lambda: ConvNetwork(resolution=3.7), "resolution is 3.7; expected an integer or None"),
        (lambda: Anderson(fixed_steps="x"), "fixed_steps is 'x'; expected True or False"),
        (lambda: Anderson(max_steps=True), "max_steps is True; expected an integer"),
        (lambda: Anderson(history=2.0), "history is 2.0; expected an integer"),
        (lambda: Picard(tolerance=None), "tolerance is None; expected a number"),
        (lambda: Implicit(adjoint=3), "adjoint is 3"),
        (lambda: Phantom(steps="2"), "steps is '2'; expected an integer"),
        (lambda: Descent(step_size="x"), "step_size is 'x'; expected a number"),
        (lambda: Site("a", channels="3"), "channels is '3'; expected an integer or None"),
        (lambda: Site(3), "path is 3; expected a text"),
    ],
)
def test_fields_have_the_types_of_their_annotations(build: Callable[[], object], sentence: str):
    with pytest.raises(ConfigError, match=f"^{sentence}"):
        build()


def test_numbers_and_lists_of_other_kinds_are_converted():
    solver = Anderson(max_steps=np.int64(3), tolerance=np.float32(0.5))
    assert DECConfig.from_json(DECConfig(solver=solver).to_json()).solver == Anderson(max_steps=3, tolerance=0.5)
    assert ConvNetwork(channels=[8, 8]).channels == (8, 8)
    assert DECConfig(temperature=1) == DECConfig(temperature=1.0)


def test_a_class_without_annotations_that_can_be_read_is_accepted():
    @dataclass(frozen=True)
    class Own(Picard):
        own: "OnlyForTypeCheckers" = 3  # noqa: F821

    assert Own(max_steps=5).own == 3


def test_a_text_that_is_no_json():
    for text in ("{sites: input}", 100_000 * "[", 10_000 * "1"):
        with pytest.raises(ConfigError, match=r"^the configuration is not JSON: "):
            DECConfig.from_json(text)
    with pytest.raises(ConfigError, match=r"^a configuration is list; expected a dictionary"):
        DECConfig.from_json("[]")


# Settings given as a dictionary or a file


def test_a_dictionary_and_a_file_are_settings(tmp_path: Path):
    config = DECConfig.paper(sites=TWO, knots=(6, 4))
    path = tmp_path / "dec.json"
    path.write_text(config.to_json(), encoding="utf-8")
    assert DECConfig.of(path) == DECConfig.of(str(path)) == DECConfig.of(config.to_dict()) == DECConfig.of(config)
    assert DECConfig.of(config) == config
    assert DECConfig.of(None) == DECConfig()


def test_settings_that_cannot_be_read_are_refused(tmp_path: Path):
    with pytest.raises(ConfigError, match=r"photographs \(No such file or directory\); expected a DECConfig, a dict"):
        DECConfig.of("photographs")
    with pytest.raises(ConfigError, match="a configuration is int"):
        DECConfig.of(6)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="no field 'knot': did you mean knots"):
        DECConfig.of({"knot": 6})
    (tmp_path / "dec.json").write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match=r"no configuration can be read from .*dec\.json \('utf-8' codec"):
        DECConfig.of(tmp_path / "dec.json")
    (tmp_path / "dec.json").write_text("{")
    with pytest.raises(ConfigError, match=r"^.*dec\.json: the configuration is not JSON"):
        DECConfig.of(tmp_path / "dec.json")
