"""The definitions and settings of the paper, in its order, with their place in the code."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["DEFINITIONS", "SETTINGS", "Statement"]


@dataclass(frozen=True)
class Statement:
    """One statement of the paper.

    Args:
        where: section of the paper.
        says: what the paper says.
        code: dotted names of the functions and classes that implement it.
        test: the file that tests it, from the root of the repository.
        holds: whether it holds, or how the library differs.
    """

    where: str
    says: str
    code: tuple[str, ...]
    test: str
    holds: str


MAPS, WARP = "tests/maps", "tests/test_warp.py"
DEFINITIONS = (
    Statement(
        "Sec. 3",
        "Global scaling (R_a f)(x) = f(x/a).",
        ("localscale.lab.pictures.draw_functions",),
        "tests/lab/pictures/test_figures.py",
        "Drawn for comparison only. It does not map [0, 1] to itself, so it is no local scaling.",
    ),
    Statement(
        "Sec. 3",
        "Equivariance M(T(f; g)) = T(M(f); g), invariance M(T(f; g)) = M(f).",
        ("localscale.testing.assert_equivariant",),
        "tests/test_testing.py",
        "As defined. Users can call the assertion in their own tests.",
    ),
    Statement(
        "Sec. 3",
        "A canonicalizer satisfies h(T(f; g)) = g · h(f).",
        ("localscale.canonicalizer.Compose",),
        "tests/canonicalizer/test_updates.py",
        "It holds at the equilibria of `compose` and of the size equilibrium, for maps that the knots represent. "
        "It **does not hold** for the paper's own update: equal canonical forms give equal maps, not g apart.",
    ),
    Statement(
        "Sec. 3",
        "Canonicalization by optimization, h(f) = argmin E(T⁻¹(f; g)).",
        ("localscale.lab.methods.Canon", "localscale.canonicalizer.Descent"),
        "tests/lab/methods/test_canon.py",
        "Both forms exist: the minimum over a finite set (Canon), and gradient descent (Optim).",
    ),
    Statement(
        "Sec. 4.1",
        "Local scaling S(f; l)(x) = f(l⁻¹(x)) for increasing l.",
        ("localscale.scale", "localscale.unscale"),
        WARP,
        "As defined, with bilinear interpolation and replicated borders.",
    ),
    Statement(
        "Sec. 4.1, Lemma 1",
        "Increasing continuous functions of [0, 1] are a group under composition.",
        ("localscale.maps.MonotoneMap",),
        f"{MAPS}/test_monotone.py",
        "Holds. Closure, associativity, identity and inverses are property tests.",
    ),
    Statement(
        "Sec. 4.1",
        "Piecewise linear l_Φ with φ₀ = 0 < … < φ_N = 1.",
        ("localscale.maps.MonotoneMap", "localscale.map_from_logits"),
        f"{MAPS}/test_monotone.py",
        "As defined. Increments are a softmax of raw parameters.",
    ),
    Statement(
        "Sec. 4.2",
        "A deep equilibrium ẑ = H(ẑ; I, ψ), differentiated implicitly.",
        ("localscale.fixed_point", "localscale.Anderson", "localscale.Implicit"),
        "tests/equilibrium/test_gradients.py",
        "As defined, and compared with gradcheck and torchdeq. The published code takes one phantom step instead.",
    ),
    Statement(
        "Sec. 4.2",
        "The module as gradient descent: H(Φ) = Φ − ∇E(S⁻¹(I; Φ)).",
        ("localscale.canonicalizer.Descent",),
        "tests/canonicalizer/test_updates.py",
        "As defined; unrolled and differentiated it is *Optim*.",
    ),
    Statement(
        "Sec. 4.2, Claim 1",
        "A minimum that gradient descent reaches is a fixed point of H.",
        ("localscale.canonicalizer.Descent",),
        "tests/canonicalizer/test_updates.py",
        "Holds. The converse of the proof does not: a fixed point is stationary, and need not be a minimum.",
    ),
    Statement(
        "Sec. 4.2",
        "The DEC module predicts Φ⁽ⁱ⁺¹⁾ from S⁻¹(I; Φ⁽ⁱ⁾), solved by Anderson acceleration.",
        ("localscale.canonicalizer.Direct", "localscale.Anderson", "localscale.DECConfig.paper"),
        "tests/canonicalizer/test_updates.py",
        "As defined. The first map is the identity, which the paper does not state.",
    ),
    Statement(
        "Sec. 4.3",
        "Latent canonicalization, S(M_k(S⁻¹(F_k; Φ_k)); Φ_k), or without S where the answer is invariant.",
        ("localscale.adapt", "localscale.sites"),
        "tests/adaptation/test_equivariant_mode.py",
        'As defined. `source="latent"` takes Φ_k from F_k, as the text says; `"image"` from the image, as the '
        "published code does.",
    ),
    Statement(
        "Sec. 5.1",
        "EquE, E‖S(M(I); Φ) − M(S(I; Φ))‖² with Φ uniform over all monotone parameters.",
        ("localscale.metrics.equivariance_error", "localscale.metrics.EquivarianceError"),
        "tests/metrics/test_functional.py",
        "As defined, per pixel. Two distributions are measured, with the displacement that each causes: raw parameters "
        "uniform in [0, 1], and increments uniform on the simplex, as the text says. Tables recorded before have the "
        "first alone.",
    ),
    Statement(
        "Sec. 5.2",
        "InvE, the mean of ‖M(I) − M(I_s)‖² over the scaled variants I_s of I.",
        ("localscale.metrics.invariance_error", "localscale.metrics.InvarianceError"),
        "tests/metrics/test_functional.py",
        "As defined. The errors that the published code computes under this name are the variants `l2` and `relative`.",
    ),
    Statement(
        "Sec. 5.2",
        "The loss of InvL, ‖M(I) − M(S(I; Φ))‖².",
        ("localscale.lab.methods.InvL",),
        "tests/lab/methods/test_invariance.py",
        "As defined.",
    ),
    Statement(
        "App. A2.2, Lemma 2",
        "Maps of the square with symmetric positive definite, commuting Jacobians are a group.",
        ("localscale.maps.SeparableMap",),
        f"{MAPS}/test_separable.py",
        "Holds for `separable` maps, whose Jacobians are diagonal. It **does not hold** for the maps of the next "
        "line, which the paper uses.",
    ),
    Statement(
        "App. A2.2",
        "Independent monotone functions along the rows and columns of a lattice, interpolated.",
        ("localscale.maps.GridMap",),
        f"{MAPS}/test_grid.py",
        "As defined; the displayed l_X lacks the factor y − y_{j−1}. Increasing rows and columns do not exclude "
        "folds, so a guard does.",
    ),
    Statement(
        "App. A2.2",
        "The inverse is approximated by inverting each row and column.",
        ("localscale.maps.RowwiseInverse", "localscale.maps.ExactInverse"),
        f"{MAPS}/test_inverse.py",
        "Both exist; the exact one is the default. [The error of the other](results.md#inverse-of-a-grid-map) "
        "reaches tens of pixels.",
    ),
)

RECIPES = "tests/lab/recipes/test_recipes.py"
SETTINGS = (
    Statement(
        "App. A1",
        "DEC is a CNN of two layers, 64 and 128 channels, pooled to the knots.",
        ("localscale.canonicalizer.ConvNetwork", "localscale.DECConfig.paper"),
        "tests/canonicalizer/test_network.py",
        "The same.",
    ),
    Statement(
        "App. A1",
        "Canon chooses among 64 maps (ImageNet: 25) by an energy from a CNN of three layers.",
        ("localscale.lab.methods.Canon",),
        "tests/lab/methods/test_canon.py",
        "The same. The paper gives neither the maps nor how the energy is trained. Ours first learns to undo known "
        "maps, without labels. The Canon rows recorded before were trained by the task alone.",
    ),
    Statement(
        "App. A1",
        "MNIST: 50 epochs, then 40 for each method; rates by backbone.",
        ("localscale.lab.recipes.mnist.MNIST",),
        RECIPES,
        "`localscale reproduce mnist` has these. Tables of small backbones train for 40 and 20 epochs.",
    ),
    Statement(
        "App. A1",
        "Objects: DPT head, 120 and 60 epochs, background weight 0.1.",
        ("localscale.lab.recipes.objects.OBJECTS", "localscale.heads.DPTHead"),
        RECIPES,
        "`localscale reproduce objects` has these. Tables of small backbones are shorter.",
    ),
    Statement(
        "App. A1, Tab. A1",
        "ImageNet: 20 epochs, rate 1e-7, mixup 0.8, label smoothing 0.1, random erasing 0.25, layer decay 0.75.",
        ("localscale.lab.recipes.imagenet.IMAGENET",),
        RECIPES,
        "`localscale reproduce imagenet` has these. The rate hardly moves a weight in 20 epochs of 125 steps.",
    ),
)
