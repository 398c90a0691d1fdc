"""Solving z = f(z), and differentiating the answer."""

from localscale.equilibrium.fixed_point import POLICIES, Solution, fixed_point
from localscale.equilibrium.gradients import GRADIENTS, Gradient, Implicit, Phantom, Unrolled, gradient_rule
from localscale.equilibrium.solvers import SOLVERS, Anderson, Estimate, Picard, Solver, relative_residual

__all__ = [
    "GRADIENTS",
    "POLICIES",
    "SOLVERS",
    "Anderson",
    "Estimate",
    "Gradient",
    "Implicit",
    "Phantom",
    "Picard",
    "Solution",
    "Solver",
    "Unrolled",
    "fixed_point",
    "gradient_rule",
    "relative_residual",
]
