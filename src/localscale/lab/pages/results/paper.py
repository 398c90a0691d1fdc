"""Figures printed in the paper."""

from __future__ import annotations

__all__ = [
    "ABLATION",
    "CLASSIFICATION",
    "GRIDS",
    "KNOTS",
    "MODULES",
    "PER_SCALE",
    "SCALE_1",
    "SEGMENTATION",
    "family_of_backbone",
]

# task → family → row → accuracy and InvE (10⁻²), as printed; ± over five runs for MNIST
CLASSIFICATION: dict[str, dict[str, dict[str, tuple[str, str]]]] = {
    "mnist": {
        "ResNet": {
            "aug": ("93.09 ± 0.41", "13.71 ± 1.65"),
            "canon": ("94.22 ± 0.33", "13.84 ± 1.05"),
            "invl": ("93.67 ± 0.73", "13.47 ± 2.01"),
            "dec": ("96.09 ± 0.16", "6.13 ± 2.01"),
        },
        "ViT": {
            "aug": ("91.23 ± 1.80", "13.33 ± 1.72"),
            "canon": ("93.73 ± 0.61", "12.32 ± 2.35"),
            "invl": ("94.79 ± 0.42", "8.17 ± 2.60"),
            "dec": ("95.64 ± 0.15", "5.04 ± 3.37"),
        },
        "DeiT": {
            "aug": ("90.91 ± 1.18", "16.17 ± 4.94"),
            "canon": ("95.01 ± 0.20", "7.04 ± 0.70"),
            "invl": ("94.06 ± 0.38", "8.04 ± 2.88"),
            "dec": ("96.46 ± 0.14", "6.02 ± 2.71"),
        },
        "Swin": {
            "aug": ("94.26 ± 0.25", "5.44 ± 1.65"),
            "canon": ("95.67 ± 0.19", "4.27 ± 1.86"),
            "invl": ("94.78 ± 0.25", "3.89 ± 0.62"),
            "dec": ("96.91 ± 0.12", "2.08 ± 1.09"),
        },
        "BEiT": {
            "aug": ("94.70 ± 0.37", "9.69 ± 1.94"),
            "canon": ("95.92 ± 0.29", "5.07 ± 1.65"),
            "invl": ("95.26 ± 0.41", "6.49 ± 0.78"),
            "dec": ("97.05 ± 0.26", "4.13 ± 1.70"),
        },
        "DINOv2": {
            "aug": ("95.80 ± 0.29", "7.47 ± 1.33"),
            "canon": ("96.63 ± 0.43", "6.00 ± 3.12"),
            "invl": ("96.66 ± 0.10", "5.21 ± 1.34"),
            "dec": ("97.90 ± 0.21", "2.62 ± 1.69"),
        },
        # Tab. pyramid gives accuracy alone.
        "HRViT": {"aug": ("93.22", "–"), "canon": ("94.93", "–"), "invl": ("95.91", "–"), "dec": ("96.67", "–")},
        "ResFormer": {"aug": ("91.04", "–"), "canon": ("95.27", "–"), "invl": ("94.92", "–"), "dec": ("96.91", "–")},
    },
    "imagenet": {
        "ViT": {
            "base": ("80.15", "8.18"),
            "aug": ("80.15", "8.16"),
            "canon": ("77.72", "10.20"),
            "invl": ("80.16", "8.16"),
            "dec": ("80.36", "8.10"),
        },
        "DeiT": {
            "base": ("69.06", "11.13"),
            "aug": ("69.06", "11.12"),
            "canon": ("64.79", "12.74"),
            "invl": ("69.06", "11.12"),
            "dec": ("69.27", "11.08"),
        },
        "Swin": {
            "base": ("77.94", "8.93"),
            "aug": ("77.96", "8.92"),
            "canon": ("74.67", "11.40"),
            "invl": ("77.97", "8.92"),
            "dec": ("78.32", "8.82"),
        },
        "BEiT": {
            "base": ("84.70", "6.29"),
            "aug": ("84.66", "6.27"),
            "canon": ("83.34", "8.03"),
            "invl": ("84.66", "6.27"),
            "dec": ("85.08", "6.24"),
        },
    },
}

# task → row → accuracy at each scale; mean ± standard deviation over scales, for Swin
PER_SCALE: dict[str, dict[str, str]] = {
    "mnist": {
        "aug": "91.64, 96.32, 93.84; 93.93 ± 1.91",
        "canon": "90.16, 95.39, 90.54; 92.03 ± 2.38",
        "invl": "91.98, 96.26, 93.88; 94.04 ± 1.75",
        "dec": "95.14, 97.81, 96.64; 96.53 ± 1.09",
    },
    "imagenet": {
        "base": "74.66, 76.44, 78.07, 79.55, 79.48, 78.88, 78.53; 77.94 ± 1.65",
        "aug": "74.71, 76.47, 78.07, 79.56, 79.48, 78.87, 78.57; 77.96 ± 1.64",
        "canon": "71.37, 73.28, 74.87, 76.04, 76.04, 75.79, 75.32; 74.67 ± 1.61",
        "invl": "74.73, 76.46, 78.07, 79.58, 79.48, 78.87, 78.57; 77.97 ± 1.64",
        "dec": "75.31, 77.04, 78.65, 79.86, 79.60, 79.05, 78.73; 78.32 ± 1.49",
    },
}

# family → row → mIoU (%) and EquE, as printed.
SEGMENTATION: dict[str, dict[str, tuple[str, str]]] = {
    "ViT": {
        "aug": ("82.18", "0.054"),
        "canon": ("79.37", "0.062"),
        "augl": ("82.35", "0.054"),
        "dec": ("83.12", "0.052"),
    },
    "Swin": {
        "aug": ("86.65", "0.036"),
        "canon": ("83.94", "0.050"),
        "augl": ("87.63", "0.037"),
        "dec": ("88.56", "0.035"),
    },
    "DINOv2": {
        "aug": ("76.63", "0.061"),
        "canon": ("76.94", "0.064"),
        "augl": ("79.05", "0.058"),
        "dec": ("80.86", "0.055"),
    },
}

# Tab. A3: accuracy by the number of DEC modules (rows) and of layers in each (1 to 4)
MODULES = {
    1: ("93.59", "94.47", "94.04", "93.22"),
    2: ("94.98", "96.04", "95.16", "95.25"),
    3: ("96.66", "96.17", "96.67", "96.38"),
    4: ("96.58", "96.78", "96.65", "96.50"),
}
# Tab. A4: accuracy by the number of layers (rows) and of knots: 1, 1.5, 2 and 2.5 times 4
KNOTS = (4, 6, 8, 10)
GRIDS = {2: ("96.61", "96.95", "97.06", "97.94"), 3: ("96.62", "96.91", "97.08", "97.08")}

# The lines of the ablation tables. Those with one number vary modules with four layers, layers of one module, or knots.
ABLATION: dict[str, str] = {
    **{f"sites{modules}": row[3] for modules, row in MODULES.items()},
    **{f"layers{layers}": figure for layers, figure in enumerate(MODULES[1], 1)},
    **{f"knots{knots}": figure for knots, figure in zip(KNOTS, GRIDS[2], strict=True)},
    "dec_compose": f"{MODULES[1][3]} (1 site, 4 layers); {GRIDS[2][3]} (10 knots)",
}

# Tab. A5: ImageNet accuracy at scale 1; family → row
SCALE_1: dict[str, dict[str, str]] = {
    "ViT": {"base": "81.29", "aug": "81.29", "canon": "79.23", "invl": "81.29", "dec": "81.43"},
    "DeiT": {"base": "70.67", "aug": "70.70", "canon": "66.92", "invl": "70.71", "dec": "70.92"},
    "Swin": {"base": "79.55", "aug": "79.56", "canon": "76.04", "invl": "79.58", "dec": "79.86"},
    "BEiT": {"base": "85.79", "aug": "85.66", "canon": "84.29", "invl": "85.66", "dec": "86.04"},
}

FAMILIES = {
    "resnet": "ResNet",
    "vit": "ViT",
    "deit": "DeiT",
    "swin": "Swin",
    "beit": "BEiT",
    "dinov2": "DINOv2",
    "hrvit": "HRViT",
    "resformer": "ResFormer",
}


def family_of_backbone(key: str) -> str:
    """Return the paper's name for the family of a backbone, or an empty string.

    >>> family_of_backbone("dinov2_small"), family_of_backbone("efficientnet_lite0")
    ('DINOv2', '')
    """
    return next((name for prefix, name in FAMILIES.items() if key.startswith(prefix)), "")
