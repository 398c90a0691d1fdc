"""Measure the speed of canonicalization beside the backbone, published code, other libraries and the hardware limit.

Every row with a target says whether the target was met. If a row fails, its cell holds the error and the others go on.
Tables with targets for a GPU have no rows on a CPU, and vice versa; ``--quick`` runs small sizes of all of them.
"""

from benchmarks.speed_inference import compiled_inference, cpu_inference, eager_inference
from benchmarks.speed_sizes import learning, sizes
from benchmarks.speed_solve import growth, solve
from benchmarks.speed_training import training_step
from benchmarks.speed_warp import warp

# Measurements that record CUDA graphs come last, because a failed recording can leave the device unusable.
MEASUREMENTS = (warp, eager_inference, cpu_inference, learning, compiled_inference, solve, training_step, growth, sizes)
PACKAGES = ("localscale", "torch", "timm", "torchdeq", "kornia", "accelerate")
