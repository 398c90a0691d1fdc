"""The documentation builds without a broken link, its reference lists every public name, and its Python blocks run."""

import importlib
import json
import logging
import re
import shutil
import statistics
import warnings
from dataclasses import replace
from functools import partial
from html.parser import HTMLParser
from pathlib import Path

import pytest
import timm
import torch
from shared import SHARED

import localscale
from localscale.lab.recipes import Recipe, find_recipe

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
FAST = ("README.md", "index.md")
MODULES = (
    *("maps", "warp", "equilibrium", "canonicalizer", "adaptation", "heads", "metrics", "fitting", "testing", "errors"),
    *("lab.methods", "lab.tasks", "lab.data", "lab.recipes", "lab.runs", "lab.training", "lab.pictures"),
)
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks(page: Path) -> list[tuple[int, str]]:
    """Return the number of the line above, and the code, of each Python block of a page."""
    text = page.read_text(encoding="utf-8")
    return [(text.count("\n", 0, found.start(1)), found[1]) for found in BLOCK.finditer(text)]


class Links(HTMLParser):
    """The links, the loaded files and the anchors of an HTML page."""

    def __init__(self, page: Path):
        super().__init__()
        self.targets: list[str] = []
        self.loaded: list[str] = []
        self.anchors: set[str] = set()
        self.feed(page.read_text(encoding="utf-8"))

    def handle_starttag(self, tag, attrs):
        values = {name: value or "" for name, value in attrs}
        self.anchors.add(values.get("id", ""))
        if tag == "a" and "href" in values:
            self.targets.append(values["href"])
        elif tag in ("img", "script") and "src" in values:
            self.loaded.append(values["src"])
        elif tag == "link" and values.get("rel") == "stylesheet":
            self.loaded.append(values["href"])


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the documentation; fail on a warning of MkDocs, as ``mkdocs build --strict`` does."""
    for package in ("mkdocs", "material", "mkdocstrings"):
        pytest.importorskip(package, reason="needs the extra docs")
    from mkdocs.commands.build import build
    from mkdocs.config import load_config

    folder = tmp_path_factory.mktemp("site")
    said: list[str] = []
    listener = logging.Handler(logging.WARNING)
    listener.emit = lambda record: said.append(record.getMessage())
    logger = logging.getLogger("mkdocs")
    logger.addHandler(listener)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # deprecations inside MkDocs and its plugins
            build(load_config(str(ROOT / "mkdocs.yml"), site_dir=str(folder), strict=False))
    finally:
        logger.removeHandler(listener)
    assert not said, "\n".join(said)
    return folder


@pytest.mark.slow
def test_links_and_pictures_are_there(site: Path):
    pages = {page: Links(page) for page in site.rglob("*.html") if page.name != "404.html"}
    broken = []
    for page, links in pages.items():
        for target in (*links.targets, *links.loaded):
            path, _, anchor = target.partition("#")
            if ":" in path:
                continue
            place = (page.parent / path).resolve() if path else page
            if place.is_dir():
                place /= "index.html"
            if not place.is_file() or (anchor and place in pages and anchor not in pages[place].anchors):
                broken.append(f"{page.relative_to(site)}: {target}")
    assert not broken, "\n".join(broken)


@pytest.mark.slow
def test_pages_need_no_network(site: Path):
    for page in site.rglob("*.html"):
        assert not [source for source in Links(page).loaded if ":" in source or source.startswith("//")], page


@pytest.mark.slow
@pytest.mark.parametrize("module", MODULES)
def test_everything_public_is_in_the_reference(site: Path, module: str):
    page = site / "reference" / ("index.html" if module == "errors" else f"{module.removeprefix('lab.')}.html")
    anchors = Links(page).anchors
    documented = {anchor.rpartition(".")[2] for anchor in anchors if anchor.startswith(f"localscale.{module}.")}
    public = importlib.import_module(f"localscale.{module}")
    constants = {name for name in public.__all__ if name.isupper() and not callable(getattr(public, name))}
    assert set(public.__all__) - constants <= documented


@pytest.mark.slow
def test_examples_in_docstrings_are_code(site: Path):
    text = (site / "reference" / "warp.html").read_text(encoding="utf-8")
    assert "<blockquote>" not in text, ">>> was read as a quotation"
    assert '<span class="gp">&gt;&gt;&gt; </span>' in text


def make_datasets(folder: Path):
    """Write the datasets that docs/data.md reads: two photographs with given masks, a scene of rendered boxes."""
    import trimesh
    from object_inputs import noisy_radiance, textured_box, write_glb, write_hdr
    from photographs import write_folder

    from localscale.lab.data import generate
    from localscale.lab.data.imagenet import imagenet_job
    from localscale.lab.data.objects import ObjectsOptions, objects_job

    generate(imagenet_job(write_folder(folder / "photographs", images=1)), folder / "out" / "imagenet")
    write_glb(folder / "meshes" / "box.glb", textured_box((0.25, 0.2, 0.15)))
    write_glb(folder / "meshes" / "ball.glb", trimesh.creation.icosphere(radius=0.1))
    for seed, name in enumerate(("alley", "beach", "cave", "dam", "exhibition")):
        write_hdr(folder / "panoramas" / f"{name}.hdr", noisy_radiance(16, seed))
    options = ObjectsOptions(
        meshes=folder / "meshes", panoramas=folder / "panoramas", count=2, group_size=2, image_size=64, samples=2
    )
    generate(objects_job(options), folder / "out" / "objects")


def find_small_recipe(name: str) -> Recipe:
    """A recipe with random weights, few small images and one epoch."""
    recipe = find_recipe(name)
    data = {"train_count": 8, "test_count": 2, "variants": 1, "bracket_count": 0, "image_size": 32}
    return replace(
        recipe,
        pretrained="none",
        precision="no",
        data=replace(recipe.data, root=Path("embedded"), **data),
        optimization=replace(recipe.optimization, epochs=1, batch_size=4),
    )


def copy_photographs(folder: Path):
    """Copy real photographs to the folders that README.md and docs/index.md train on: 8 breeds, 2 for each part."""
    pets = SHARED / "pets"
    if not pets.is_dir():
        pytest.skip(f"{pets} is absent: this page trains on photographs of Oxford-IIIT Pets")
    for part, name in (("train", "trainval"), ("val", "test")):
        for breed in sorted((pets / name).iterdir())[:8]:
            (folder / "pets" / part / breed.name).mkdir(parents=True)
            for photograph in sorted(breed.glob("*.jpg"))[:2]:
                shutil.copy(photograph, folder / "pets" / part / breed.name)


def cut_training(monkeypatch: pytest.MonkeyPatch):
    """Let a page train in seconds: random weights, images of 64 px, few steps."""
    create, learn, fit = timm.create_model, localscale.learn_sizes, localscale.fit

    def create_small(name: str, *, pretrained: bool = False, **settings):
        return create(name, pretrained_cfg_overlay={"input_size": (3, 64, 64)}, **settings)

    monkeypatch.setattr("timm.create_model", create_small)
    monkeypatch.setattr("localscale.learn_sizes", partial(learn, steps=8))
    monkeypatch.setattr("localscale.fit", lambda *loaders, epochs: fit(*loaders, epochs=min(epochs, 2), cpu=True))


def slow_unless_fast(page: Path):
    return pytest.param(page, marks=() if page.name in FAST else pytest.mark.slow, id=str(page.relative_to(ROOT)))


@pytest.mark.parametrize("page", [slow_unless_fast(page) for page in PAGES if blocks(page)])
def test_python_of_a_page_runs(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))  # no digits from an earlier download
    monkeypatch.setattr("localscale.lab.recipes.find_recipe", find_small_recipe)
    if page.name == "data.md":
        for kind in ("imagenet", "objects"):
            monkeypatch.syspath_prepend(ROOT / "tests" / "lab" / "data" / kind)
        make_datasets(tmp_path)
    if page.name in FAST:
        copy_photographs(tmp_path)
        cut_training(monkeypatch)
    names = {"__name__": "page"}
    with warnings.catch_warnings(), torch.random.fork_rng():
        torch.manual_seed(0)
        for line, code in blocks(page):
            exec(compile("\n" * line + code, str(page), "exec"), names)
    if page.name == "README.md":
        images, again = torch.rand(2, 3, 64, 64), localscale.AdaptedModel.from_pretrained("out/pets")
        assert torch.equal(again.eval()(images), names["model"].eval()(images))


LINK = re.compile(r"\]\(([^)\s]+)\)|<img src=\"([^\"]+)\"")
HEADING = re.compile(r"^#+ (.*)$", re.MULTILINE)


def anchors(page: Path) -> set[str]:
    """Return the anchors that a repository's page and MkDocs give to the headings of a Markdown page."""
    found = HEADING.findall(page.read_text(encoding="utf-8"))
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in found}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_of_a_page_lead_somewhere(page: Path):
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    for target in (first or second for first, second in LINK.findall(text)):
        path, _, anchor = target.partition("#")
        if ":" in path:
            continue
        place = (page.parent / path).resolve() if path else page
        assert place.exists(), target
        assert not anchor or anchor in anchors(place), target


def test_tables_on_pages_are_those_of_the_results():
    def cell(table: str, row: str, backbone: str = "") -> str:
        runs = json.loads((ROOT / "results" / f"{table}.json").read_text(encoding="utf-8"))["runs"]
        metrics = [run["metrics"] for run in runs if run["row"] == row and run["backbone"].startswith(backbone)]
        values = [[m["accuracy"] for m in metrics], [m["invariance_error"]["squared"] for m in metrics]]
        return " / ".join(
            f"{100 * statistics.mean(v):.1f}" + (f" ± {100 * statistics.stdev(v):.1f}" if len(v) > 1 else "")
            for v in values
        )

    for page, table, control, *rows in (
        ("README.md", "mnist_sizes", "aug_long", "sizes"),
        ("README.md", "mnist_sizes_long", "aug_long_regularised", "sizes_regularised"),
        ("README.md", "mnist_cnn", "aug_long", "sizes"),
        ("README.md", "mnist_shipped", "aug_long", "sizes"),
        ("docs/training.md", "mnist_tiny", "aug_long", "dec_joint", "dec_compose_joint"),
        ("docs/training.md", "mnist_tiny", "aug_plus", "dec", "dec_compose"),
    ):
        text = (ROOT / page).read_text(encoding="utf-8").replace("*", "")
        for row in rows:
            assert f"| {cell(table, control)} | {cell(table, row)} |" in text
    for table, backbone in (("mnist_small", "vit_tiny"), ("mnist_resnet", "resnet50")):
        expected = f"| {cell(table, 'aug_long', backbone)} | {cell(table, 'sizes', backbone)} |"
        assert expected in (ROOT / "README.md").read_text(encoding="utf-8").replace("*", "")
    page = (ROOT / "docs" / "training.md").read_text(encoding="utf-8")
    places = (("mnist_small", "deit_tiny"), ("mnist_small", "vit_tiny"), ("mnist_resnet", "resnet50"))
    for row in ("aug", "aug_plus", "canon", "invl", "dec"):
        assert f" | {' | '.join(cell(table, row, backbone) for table, backbone in places)} |" in page


def test_differences_on_photographs_of_seven_sizes_are_those_of_the_results():
    rows = json.loads((ROOT / "results" / "photograph_scales.json").read_text(encoding="utf-8"))["tables"][1]["rows"]
    page = (ROOT / "docs" / "your_images.md").read_text(encoding="utf-8")
    for method in dict.fromkeys(row["method"] for row in rows):
        deit, vit = ({key: cell.replace("-", "−") for key, cell in r.items()} for r in rows if r["method"] == method)
        for column in ("mean accuracy", "InvE", "deviation"):
            assert f"| {deit[column]} | {vit[column]} |" in page, (method, column)


def test_differences_on_photographs_are_those_of_the_results():
    tables = json.loads((ROOT / "results" / "photographs.json").read_text(encoding="utf-8"))["tables"][1:]
    rows = [row for table in tables for row in table["rows"] if row["classifier"] == "mean"]
    one, two, flipped = (
        {name: cell.replace("-", "−") for row in rows if row["method"] == method for name, cell in row.items()}
        for method in ("photographs, one pass", "photographs, two passes", "base, with its mirror image")
    )
    page = (ROOT / "docs" / "your_images.md").read_text(encoding="utf-8")
    for group in ("all (1600)", "small, below 0.3 (401)", "below 0.1 (151)"):
        assert f"| {one[group]} | {two[group]} | {flipped[group]} |" in page
    page = (ROOT / "docs" / "adapting.md").read_text(encoding="utf-8")
    for group in one.keys() - {"classifier", "method", "all (1600)", "small, below 0.3 (401)"}:
        count = group.partition("(")[2].rstrip(")")
        assert f"| {one[group]} |" in page or count in ("1230", "218"), group


def test_every_python_block_is_seen():
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        assert len(blocks(page)) == len(re.findall(r"^\s*(?:```|~~~)\s*(?:python|py)\b", text, re.MULTILINE)), page
