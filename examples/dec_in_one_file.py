"""The whole method of the paper in plain PyTorch, without the library. A test compares it with localscale.

Run from the repository root: ``.venv/bin/python examples/dec_in_one_file.py``
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

STEPS, TOLERANCE = 20, 1e-4  # of the fixed-point iterations, forward and backward


# 1. Monotone maps (Sec. 4.1, App. A2.2). A map l of [0,1]² onto itself is an N × N lattice of control points, bilinear
# in each cell. `phi` (B, 2, N, N) holds the displacements l(p) − p of the control points: channel 0 is x, channel 1 y.
def increasing(logits: Tensor) -> Tensor:
    """Return the displacements (..., N) of the N knots of an increasing function, for any logits (..., N − 1)."""
    surplus = logits.softmax(-1) - 1 / logits.shape[-1]  # positive increments that sum to one, minus even increments
    return F.pad(surplus[..., :-1].cumsum(-1), (1, 1))  # the running sum of increments is Φ; both ends stay in place


def map_from_logits(rows: Tensor, columns: Tensor, smallest: float = 0.1) -> Tensor:
    """Turn logits (B, N, N − 1) of the lattice's rows and columns into a map whose determinants are ≥ ``smallest``.

    Monotone rows and columns can still fold, so each map is shrunk toward the identity (the paper has no such guard).
    In a bilinear cell the determinant is affine, so its corners decide. There ∂l/∂p = I + tK has the determinant
    1 + t·tr K + t²·det K, and t ≤ 1 is chosen where the first corner reaches ``smallest``.
    """
    phi = torch.stack((increasing(rows), increasing(columns).mT), dim=1)
    dx, dy = (phi.diff(dim=dim) * (phi.shape[dim] - 1) for dim in (3, 2))
    corners = [(x, y) for x in (dx[:, :, :-1], dx[:, :, 1:]) for y in (dy[..., :-1], dy[..., 1:])]
    trace = torch.stack([x[:, 0] + y[:, 1] for x, y in corners], dim=1)
    determinant = torch.stack([x[:, 0] * y[:, 1] - x[:, 1] * y[:, 0] for x, y in corners], dim=1)
    root = (trace.square() - 4 * (1 - smallest) * determinant).clamp_min(torch.finfo(phi.dtype).eps).sqrt()
    return phi / ((root - trace) / (2 - 2 * smallest)).flatten(1).amax(1).clamp_min(1).view(-1, 1, 1, 1)


# 2. Undoing a local scaling: S⁻¹(F; l)(p) = F(l(p)). Pixel (i, j) of an H × W grid is at the point (j/(W−1), i/(H−1)).
def unscale(features: Tensor, phi: Tensor) -> Tensor:
    """Read ``features`` (B, C, H, W) at l(p) for every pixel p."""
    displacement = F.interpolate(phi, size=features.shape[2:], mode="bilinear", align_corners=True)
    y, x = (torch.linspace(0, 1, size, dtype=phi.dtype, device=phi.device) for size in features.shape[2:])
    points = torch.stack(torch.meshgrid(x, y, indexing="xy")) + displacement
    return F.grid_sample(features, 2 * points.movedim(1, -1) - 1, padding_mode="border", align_corners=True)


# 3. The deep equilibrium canonicalizer (Sec. 4.2): the map with Φ = H_ψ(S⁻¹(F; Φ)), and its gradient.
def iterate(f: Callable[[Tensor], Tensor], z: Tensor) -> Tensor:
    """Repeat z ← f(z) until z no longer changes."""
    for _ in range(STEPS):
        z, before = f(z), z
        if (z - before).abs().max() <= TOLERANCE:
            break
    return z


class Canonicalizer(nn.Module):
    """Find the maps of features (B, C, H, W); H_ψ is two convolutions and a pooling to the knots (App. A1)."""

    def __init__(self, channels: int, knots: int) -> None:
        super().__init__()
        self.knots = knots
        self.layers = nn.ModuleList((nn.Conv2d(channels, 64, 3, padding=1), nn.Conv2d(64, 128, 3, padding=1)))
        self.to_logits = nn.Conv2d(128, 2, 1)
        nn.init.zeros_(self.to_logits.weight)  # equal logits give the identity map,
        nn.init.zeros_(self.to_logits.bias)  # so the adapted network starts as the network it was

    def network(self, x: Tensor) -> Tensor:
        """H_ψ: predict the next map from the features in the canonical form of the current map."""
        for layer in self.layers:
            x = F.gelu(F.conv2d(x, layer.weight, layer.bias, stride=2 if min(x.shape[2:]) >= 28 else 1, padding=1))
        rows, columns = self.to_logits(x).unbind(1)
        rows, columns = (F.adaptive_avg_pool2d(x, (self.knots, self.knots - 1)) for x in (rows, columns.mT))
        return map_from_logits(rows.tanh(), columns.tanh())

    def forward(self, features: Tensor) -> Tensor:
        """Solve for the equilibrium, then attach its gradient by the implicit function theorem."""
        if features.shape[1] > 4:  # a latent feature: normalise the channels of each pixel
            features = F.layer_norm(features.movedim(1, -1), features.shape[1:2]).movedim(-1, 1)
        with torch.no_grad():
            identity = features.new_zeros(len(features), 2, self.knots, self.knots)
            solved = iterate(lambda phi: self.network(unscale(features, phi)), identity)
        phi = self.network(unscale(features, solved.requires_grad_()))  # one step with a graph: J = ∂phi/∂solved
        result = phi.clone()
        if result.requires_grad:  # replace the result's gradient v by the u that solves u = v + Jᵀu
            result.register_hook(lambda v: iterate(lambda u: v + torch.autograd.grad(phi, solved, u, True)[0], v))
        return result


# 4. Latent canonicalization (Sec. 4.3): a part M_k of a network reads S⁻¹(F_k; Φ_k) instead of F_k (invariant mode).
class SmallCNN(nn.Module):
    """A classifier in two parts, canonicalized at the image and at the latent feature between the parts."""

    def __init__(self) -> None:
        super().__init__()
        self.at_image, self.stem = Canonicalizer(1, knots=6), nn.Conv2d(1, 16, 3, stride=2, padding=1)
        self.at_latent, self.body = Canonicalizer(16, knots=4), nn.Conv2d(16, 32, 3, stride=2, padding=1)
        self.head = nn.Linear(32, 2)

    def forward(self, image: Tensor) -> Tensor:
        latent = self.stem(unscale(image, self.at_image(image))).relu()
        return self.head(self.body(unscale(latent, self.at_latent(latent))).relu().mean(dim=(2, 3)))


if __name__ == "__main__":
    torch.manual_seed(0)
    model, axis = SmallCNN(), torch.linspace(-0.5, 0.5, 32)
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
    for step in range(21):  # learn to tell vertical from horizontal ellipses of many sizes
        labels, radii = torch.arange(16) % 2, 0.1 + 0.3 * torch.rand(16, 1, 1)
        ellipses = torch.sigmoid(60 * (radii - torch.hypot(2 * axis[None, None, :], axis[None, :, None])))
        images = torch.where(labels.view(-1, 1, 1) == 1, ellipses.mT, ellipses)[:, None]
        loss = F.cross_entropy(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 10 == 0:
            moved = model.at_image(images).norm(dim=1).mean()
            print(f"step {step}: loss {loss:.3f}, maps move points by {moved:.1%} of the image's side")
