"""Split a fused projection into its blocks, each orthogonalized by itself.

The rows of a fused query-key-value weight are three maps that happen to share storage. Two ways to
say where they are: an attribute of the parameter, or an option of its group.
"""

import torch
from torch import nn

from steepest import OrthogonalizedOptimizer
from steepest.linalg import newton_schulz


def orthogonalize_blocks(grad: torch.Tensor, sizes: tuple[int, ...]) -> torch.Tensor:
    """Orthogonalize blocks of rows one by one, each scaled by its own shape."""
    blocks = [
        0.2 * max(block.shape) ** 0.5 * newton_schulz(block) for block in grad.split(sizes, dim=0)
    ]
    return torch.cat(blocks)


class SplitByAttribute(OrthogonalizedOptimizer):
    """Reads ``param.row_blocks``; a parameter without it is one block."""

    def orthogonalize(self, param, grad, **kwargs):
        return orthogonalize_blocks(grad, getattr(param, "row_blocks", (grad.shape[0],)))


class SplitByOption(OrthogonalizedOptimizer):
    """Reads the group's option ``row_blocks``; None is one block."""

    def orthogonalize(self, param, grad, *, row_blocks, **kwargs):
        return orthogonalize_blocks(grad, row_blocks or (grad.shape[0],))


SETTINGS = {
    "lr": 1e-2,
    "momentum": 0.95,
    "weight_decay": 0.1,
    "nesterov": True,
    "weight_decay_method": "decoupled",
    "fp32_matmul_prec": "highest",
}


def main() -> None:
    torch.manual_seed(0)
    queries, keys = 64, 16  # grouped-query attention: fewer keys and values than queries
    sizes = (queries, keys, keys)
    qkv, output = nn.Linear(64, sum(sizes), bias=False), nn.Linear(64, 64, bias=False)

    qkv.weight.row_blocks = sizes
    by_attribute = SplitByAttribute([qkv.weight, output.weight], **SETTINGS)

    by_option = SplitByOption(
        [{"params": [qkv.weight], "row_blocks": sizes}, {"params": [output.weight]}],
        row_blocks=None,  # the default of every group
        **SETTINGS,
    )

    x = torch.randn(8, 64)
    for optimizer in (by_attribute, by_option):
        before = qkv.weight.detach().clone()
        optimizer.zero_grad()
        output(qkv(x)[:, :queries]).square().mean().backward()
        optimizer.step()
        moved = (qkv.weight - before).detach().split(sizes)
        norms = ", ".join(f"{block.norm():.4f}" for block in moved)
        print(f"{type(optimizer).__name__}: norms of the q, k, v updates {norms}")


if __name__ == "__main__":
    main()
