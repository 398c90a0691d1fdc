"""The colours of every figure and page, after Okabe and Ito: distinguishable with any colour vision."""

__all__ = ["BLUE", "GREEN", "GREY", "INK", "ORANGE", "PURPLE", "SERIES", "SKY", "VERMILION", "YELLOW", "rgb"]

BLUE, ORANGE, GREEN, PURPLE, SKY = "#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9"
VERMILION = "#C04A00"  # darker than Okabe and Ito's, so that text in it is readable on white
YELLOW, GREY, INK = "#F0E442", "#7F7F7F", "#222222"
SERIES = (BLUE, VERMILION, GREEN, PURPLE, SKY, ORANGE)  # lines of a plot, in this order


def rgb(colour: str) -> tuple[float, float, float]:
    """Return red, green and blue in [0,1].

    >>> rgb("#FF0000")
    (1.0, 0.0, 0.0)
    """
    red, green, blue = bytes.fromhex(colour.removeprefix("#"))
    return red / 255, green / 255, blue / 255
