"""Keep the norm of every weight at its first value, by the two weight-update hooks.

The hook before the update scales it to the radius, the hook after it brings the weight back to the
sphere: the learning rate is then the angle of a step in radians, nearly.
"""

import torch
from torch import nn

from steepest import OrthogonalizedOptimizer
from steepest.linalg import newton_schulz


class Hyperball(OrthogonalizedOptimizer):
    """Moves each weight on the sphere of its initial norm, kept in ``state["radius"]``."""

    def pre_weight_update_fn_inplace(self, param, update):
        state = self.state[param]
        if "radius" not in state:
            state["radius"] = param.norm()
        update.mul_(state["radius"] / update.norm().clamp_min(1e-30))

    def post_weight_update_fn_inplace(self, param):
        param.mul_(self.state[param]["radius"] / param.norm())


def main() -> None:
    torch.manual_seed(0)
    layer = nn.Linear(32, 16, bias=False)
    optimizer = Hyperball(
        layer.parameters(),
        lr=0.05,
        momentum=0.9,
        weight_decay=0.0,
        nesterov=True,
        weight_decay_method="decoupled",
        fp32_matmul_prec="highest",
        scaled_orthogonalize_fn=newton_schulz,
    )
    x, y = torch.randn(64, 32), torch.randn(64, 16)
    for step in range(5):
        loss = (layer(x) - y).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"step {step}  loss {loss.item():.4f}  norm {layer.weight.norm().item():.6f}")


if __name__ == "__main__":
    main()
