"""Download Google Scanned Objects and Poly Haven panoramas, for ``localscale data fetch objects``."""

from __future__ import annotations

import hashlib
import json
import logging
import urllib.parse
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from urllib.error import HTTPError

from tqdm import tqdm

from localscale.errors import ConfigError, DataError, OutputError
from localscale.files import write_whole
from localscale.lab.data.objects.answers import is_name, plain, read_authors, read_names, read_panorama_file
from localscale.lab.data.objects.archives import digest_of_model, is_unpacked, unpack_model
from localscale.lab.data.objects.downloads import Web, is_intact

__all__ = ["LICENCES", "Fetched", "Services", "Source", "fetch_objects"]

logger = logging.getLogger(__name__)
OWNER, COLLECTION = "GoogleResearch", "Scanned Objects by Google Research"
PAGE, MOST_PAGES, MOST_NAMES = 100, 200, 20_000  # Google Scanned Objects are 1,030 models
RADIANCE = b"#?"  # the first bytes of every .hdr file
LICENCES = """\
# Licences

- `meshes/`: Google Scanned Objects (Downs et al., 2022), from Gazebo Fuel, owner GoogleResearch.
  Creative Commons Attribution 4.0 International (CC BY 4.0), https://creativecommons.org/licenses/by/4.0/.
  Whoever passes them or images of them on names Google Research as their author.
- `panoramas/`: Poly Haven, https://polyhaven.com/license. CC0 1.0, https://creativecommons.org/publicdomain/zero/1.0/.
  No credit is required; `sources.json` names the photographers.
"""


@dataclass(frozen=True)
class Services:
    """Addresses of the servers of the two collections."""

    fuel: str = "https://fuel.gazebosim.org/1.0"
    haven: str = "https://api.polyhaven.com"


@dataclass(frozen=True)
class Source:
    """One downloaded mesh or panorama: its address, licence and authors, and the SHA-256 of what was kept of it.

    The checksum of a mesh is that of the list of its files with the SHA-256 of each.
    """

    name: str
    kind: str
    url: str
    licence: str
    authors: tuple[str, ...]
    sha256: str


@dataclass(frozen=True)
class Fetched:
    """The downloaded sources, the reasons why others failed, and the text of the licences."""

    sources: tuple[Source, ...]
    failed: dict[str, str]
    licences: str = LICENCES


def fetch_objects(
    out: Path,
    *,
    meshes: int = 100,
    panoramas: int = 24,
    resolution: str = "1k",
    services: Services | None = None,
    web: Web | None = None,
    progress: bool = False,
) -> Fetched:
    """Download ``meshes`` models to ``out/meshes`` and ``panoramas`` panoramas to ``out/panoramas``.

    A hash of the names selects them, so a later call with larger numbers only adds files. Files that are complete are
    not downloaded again. A file that fails is logged and listed, and the others are still downloaded.
    """
    if meshes < 0 or panoramas < 0 or meshes + panoramas == 0:
        raise ConfigError(f"--meshes is {meshes} and --panoramas is {panoramas}; expected at least one file")
    services, web = services or Services(), web or Web()
    try:
        for folder in (out / "meshes", out / "panoramas"):
            folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OutputError(f"{out} cannot be written: {error.strerror or error}") from error
    found = []
    if meshes:
        found.append(_fetch_meshes(out / "meshes", meshes, services, web, progress))
    if panoramas:
        found.append(_fetch_panoramas(out / "panoramas", panoramas, resolution, services, web, progress))
    sources = tuple(source for each in found for source in each.sources)
    failed = {name: reason for each in found for name, reason in each.failed.items()}
    listing = {"sources": [asdict(source) for source in sources], "failed": failed}
    write_whole(out / "sources.json", json.dumps(listing, indent=1) + "\n")
    write_whole(out / "LICENCES.md", LICENCES)
    return Fetched(sources, failed)


def _fetch_meshes(folder: Path, count: int, services: Services, web: Web, progress: bool) -> Fetched:
    def get(name: str) -> Source:
        url = f"{services.fuel}/{OWNER}/models/{urllib.parse.quote(name)}.zip"
        archive = folder / f".{name}.zip"
        try:
            if not is_unpacked(folder / name):
                logger.info("downloading %s", url)
                web.download(url, archive)
                unpack_model(archive, folder / name)
        finally:
            archive.unlink(missing_ok=True)
        return Source(name, "mesh", url, "CC BY 4.0", ("Google Research",), digest_of_model(folder / name))

    names = _choose(_list_models(services, web), count, "meshes")
    return _fetch_each(names, get, "meshes", services.fuel, progress)


def _fetch_panoramas(
    folder: Path, count: int, resolution: str, services: Services, web: Web, progress: bool
) -> Fetched:
    listing = web.read_json(f"{services.haven}/assets?t=hdris")
    if not isinstance(listing, dict) or not listing:
        raise DataError(f"{services.haven} lists no panoramas; expected a JSON object with one entry for each")

    def get(name: str) -> Source:
        answer = web.read_json(f"{services.haven}/files/{urllib.parse.quote(name)}")
        file = read_panorama_file(answer, name, resolution, services.haven)
        path = folder / f"{name}_{resolution}.hdr"
        if not is_intact(path, size=file.size, md5=file.md5):
            logger.info("downloading %s", plain(file.url))
            web.download(file.url, path, size=file.size, md5=file.md5, begins=RADIANCE)
        with path.open("rb") as stream:
            digest = hashlib.file_digest(stream, "sha256").hexdigest()
        return Source(name, "panorama", file.url, "CC0 1.0", read_authors(listing[name]), digest)

    return _fetch_each(_choose(listing, count, "panoramas"), get, "panoramas", services.haven, progress)


def _fetch_each(names: Iterable[str], get: Callable[[str], Source], what: str, server: str, progress: bool) -> Fetched:
    """Download every name; collect the sources and the reasons of failures; raise if all failed."""
    sources, failed = [], {}
    for name in tqdm(names, desc=what, unit="file", disable=not progress, dynamic_ncols=True):
        try:
            sources.append(get(name))
        except DataError as error:
            failed[name] = plain(error)
            logger.warning("%s of the %s is left out: %s", name, what, failed[name])
    if not sources:
        first = next(iter(failed.values()), "none were listed")
        raise DataError(f"no {what} could be downloaded from {server}: {first}")
    return Fetched(tuple(sources), failed)


def _list_models(services: Services, web: Web) -> list[str]:
    """Return the names of all models, page by page; the page after the last one is empty or has status 404."""
    names: dict[str, None] = {}
    for page in range(1, MOST_PAGES + 1):
        query = f"page={page}&per_page={PAGE}&q=collections:{urllib.parse.quote(COLLECTION)}"
        try:
            models = web.read_json(f"{services.fuel}/models?{query}")
        except DataError as error:
            if page > 1 and isinstance(error.__cause__, HTTPError) and error.__cause__.code == 404:
                return list(names)
            raise
        try:
            fresh = [name for name in read_names(models, OWNER) if name not in names]
        except DataError as error:
            raise DataError(f"{services.fuel} {error}") from None
        names |= dict.fromkeys(fresh)
        if not fresh:
            return list(names)
        if len(names) >= MOST_NAMES:
            break
    logger.warning("%s lists more than %d models; the first ones are used", services.fuel, len(names))
    return list(names)[:MOST_NAMES]


def _choose(names: Iterable[str], count: int, what: str) -> list[str]:
    """Select ``count`` names by a hash; leave out names that are not safe as a folder's name."""
    usable = [name for name in names if is_name(name)]
    chosen = sorted(usable, key=lambda name: hashlib.sha256(name.encode()).digest())[:count]
    if len(chosen) < count:
        logger.warning("%d %s were requested; the collection has %d", count, what, len(chosen))
    return sorted(chosen)
