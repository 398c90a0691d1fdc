"""Files that somebody could hand in as an image: disguised, broken, huge, or in a format that starts a program."""

from __future__ import annotations

import io
import zipfile
import zlib
from collections.abc import Callable
from random import Random

from PIL import Image

__all__ = ["odd_file", "odd_file_name", "with_flipped_bytes"]

EPS = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 32 32\n%%EndComments\n(/etc/passwd) (r) file\nshowpage\n%%EOF\n"
SVG = b'<svg xmlns="http://www.w3.org/2000/svg"><image href="file:///etc/passwd" width="9" height="9"/></svg>'
ALLOWED = ("PNG", "JPEG", "WEBP", "GIF", "TIFF", "BMP", "PPM")
OTHERS = ("EPS", "PDF", "ICO", "TGA", "JPEG2000", "SGI", "PCX", "DDS", "IM", "SPIDER", "ICNS")
STARTS: tuple[bytes, ...] = (
    *(b"%!PS", b"\xc5\xd0\xd3\xc6", b"%PDF-1.7", b"SIMPLE  =", b"8BPS", b"DDS ", b"icns", b"\xd7\xcd\xc6\x9a", b"GRIB"),
    *(
        b"\x89HDF\r\n\x1a\n",
        b"BUFR",
        b"\0\0\x01\xb3",
        b"/* XPM */",
        b"#define w 8\n",
        b"DanM",
        b"BLP2",
        b"\xff\x4f\xff\x51",
    ),
    *(b"RIFF\xff\xff\xff\xffWEBPVP8X", b"II*\0", b"MM\0*", b"GIF89a", b"BM", b"P6\n9 9\n", b"\0\0\0\x1cftypavif"),
)
NAMES = (
    "a.png",
    "a.eps",
    "a.svg",
    ".png",
    "-rf.png",
    "<b>.png",
    "a\nb.png",
    "ü☃.jpg",
    "a" * 200 + ".png",
    "%2e%2e.gif",
)


def odd_file_name(draw: Random) -> str:
    """Return a file name."""
    return draw.choice(NAMES)


def odd_file(draw: Random) -> tuple[str, bytes]:
    """Return the kind of the file, and its bytes."""
    kind = draw.choice(list(KINDS))
    return kind, KINDS[kind](draw)


def _picture(draw: Random, form: str, mode: str = "RGB") -> bytes:
    side = draw.randint(1, 90), draw.randint(1, 90)
    image = Image.frombytes("RGB", side, draw.randbytes(3 * side[0] * side[1])).convert(mode)
    buffer = io.BytesIO()
    image.save(buffer, form)
    return buffer.getvalue()


def _in_another_format(draw: Random) -> bytes:
    return _picture(draw, draw.choice(OTHERS), "RGB")


def _valid(draw: Random) -> bytes:
    return _picture(draw, draw.choice(ALLOWED))


def with_flipped_bytes(draw: Random, data: bytes) -> bytes:
    """Return the bytes with a few of them changed."""
    changed = bytearray(data)
    for _ in range(draw.randint(1, 12) if changed else 0):
        changed[draw.randrange(len(changed))] = draw.randrange(256)
    return bytes(changed)


def _cut(draw: Random) -> bytes:
    data = _valid(draw)
    return data[: draw.randrange(len(data))]


def _vast(draw: Random) -> bytes:
    """Return a PNG of a few bytes that claims many pixels, in one bit or in 16 bits per channel."""
    side, bits, colours = draw.choice((3_000, 20_000, 2**31 - 1)), draw.choice((1, 16)), draw.choice((0, 2))
    bits = 16 if colours == 2 else bits
    header = side.to_bytes(4, "big") * 2 + bytes((bits, colours, 0, 0, 0))
    rows = zlib.compress(bytes(1 << 20), 9)
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        _chunk(*pair) for pair in ((b"IHDR", header), (b"IDAT", rows), (b"IEND", b""))
    )


def _bomb_of_text(draw: Random) -> bytes:
    """Return a PNG with compressed text of 64 MiB."""
    good = _picture(draw, "PNG")
    bomb = _chunk(b"zTXt", b"comment\0\0" + zlib.compress(bytes(64 << 20), 9))
    return good[:33] + bomb + good[33:]


def _archive(draw: Random) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("../../a.png", bytes(1 << 20))
    return draw.choice((b"", _picture(draw, "PNG"))) + buffer.getvalue()


def _chunk(kind: bytes, data: bytes) -> bytes:
    return len(data).to_bytes(4, "big") + kind + data + zlib.crc32(kind + data).to_bytes(4, "big")


KINDS: dict[str, Callable[[Random], bytes]] = {
    "EPS": lambda draw: EPS + draw.randbytes(draw.randrange(9)),
    "EPS with a preview": lambda draw: b"\xc5\xd0\xd3\xc6" + (30).to_bytes(4, "little") + bytes(22) + EPS,
    "EPS after an image": lambda draw: _picture(draw, "PNG") + EPS,
    "SVG": lambda draw: SVG,
    "another format": _in_another_format,
    "start of a format": lambda draw: draw.choice(STARTS) + draw.randbytes(draw.randrange(400)),
    "noise": lambda draw: draw.randbytes(draw.randrange(400)),
    "empty": lambda draw: b"",
    "vast": _vast,
    "bomb of text": _bomb_of_text,
    "archive": _archive,
    "cut": _cut,
    "flipped": lambda draw: with_flipped_bytes(draw, _valid(draw)),
    "valid": _valid,
    "16 bits": lambda draw: _picture(draw, "PNG", "I;16"),
    "too heavy": lambda draw: _valid(draw) + bytes(3 << 20),
}
