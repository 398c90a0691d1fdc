"""Speed: what canonicalizing costs beside the backbone, the published code and peers, and how far from the hardware.

Every row with a target says whether it was met; a row that fails says so and the others go on. Tables whose targets are
for a GPU have no rows on a CPU, and the other way round; ``--quick`` runs small sizes of all of them anywhere.
"""

from benchmarks.speed_inference import compiled_inference, cpu_inference, eager_inference
from benchmarks.speed_solve import growth, solve
from benchmarks.speed_training import training_step
from benchmarks.speed_warp import warp

# What records CUDA graphs comes last: a recording that fails can leave a broken device to what follows.
MEASUREMENTS = (warp, eager_inference, cpu_inference, compiled_inference, solve, training_step, growth)
PACKAGES = ("localscale", "torch", "timm", "torchdeq", "kornia", "accelerate")
