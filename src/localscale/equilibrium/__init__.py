"""Solve z = f(z), and differentiate the solution."""

from localscale.equilibrium.fixed_point import POLICIES, Solution, fixed_point
from localscale.equilibrium.gradients import GRADIENTS, Gradient, Implicit, Phantom, Unrolled
from localscale.equilibrium.solver import Estimate, Solver, iterate, relative_residual
from localscale.equilibrium.solvers import SOLVERS, Anderson, Picard

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
    "iterate",
    "relative_residual",
]
