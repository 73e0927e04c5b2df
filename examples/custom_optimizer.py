"""A new optimizer is one map from matrices to directions: here Muon blended with plain momentum.

Layouts, momentum, decay, scale, second moments, hooks, checks and checkpoints come with the base.
"""

import torch
from torch import nn

from steepest import MatrixOptimizer


class Blended(MatrixOptimizer):
    """A share of the momentum itself, the rest its orthogonal factor."""

    own_options = {"share": 0.25, "nesterov": False}  # a new option, and another default

    def direction(self, matrices, *, share, **options):
        """Return a direction for each matrix of ``(count, rows, columns)``."""
        orthogonal = super().direction(matrices, share=share, **options)
        lengths = torch.linalg.vector_norm(matrices, dim=(1, 2), keepdim=True).clamp_min(1e-30)
        rank = min(matrices.shape[1:])
        return (1 - share) * orthogonal + share * rank**0.5 * matrices / lengths


def main() -> None:
    torch.manual_seed(0)
    qkv, experts = nn.Linear(32, 48, bias=False), nn.Parameter(0.1 * torch.randn(4, 16, 32))
    optimizer = Blended(
        [
            {"params": qkv.parameters(), "split": (32, 8, 8)},  # each block by itself
            {"params": [experts], "layout": "stack", "share": 0.5, "second_moment": "normuon"},
        ],
        lr=1e-2,
        hooks=("relative_update",),  # the learning rate is then relative to the weight
    )
    x, y = torch.randn(256, 32), torch.randn(256, 16)
    for step in range(5):
        hidden = qkv(x)[:, :32]
        loss = (torch.einsum("bi,eoi->bo", hidden, experts) - y).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"step {step}  loss {loss.item():.4f}")
    resumed = Blended([{"params": qkv.parameters()}, {"params": [experts], "layout": "stack"}])
    resumed.load_state_dict(optimizer.state_dict())
    print(f"options of the second group after loading: share={resumed.param_groups[1]['share']}")


if __name__ == "__main__":
    main()
