"""Orthogonalize convolution kernels as out × (in·kh·kw) matrices.

``steepest.Muon`` does this with the group option ``layout="convolution"``; here it is written out,
as a model for other reshapes.
"""

import torch
from torch import nn

from steepest import OrthogonalizedOptimizer
from steepest.linalg import newton_schulz


class ConvolutionOptimizer(OrthogonalizedOptimizer):
    """Flattens every parameter to (out, everything else)."""

    def orthogonalize(self, param, grad, **kwargs):
        matrix = grad.reshape(grad.shape[0], -1)
        scale = 0.2 * max(matrix.shape) ** 0.5
        return (scale * newton_schulz(matrix)).reshape(grad.shape)


def main() -> None:
    torch.manual_seed(0)
    layer = nn.Conv2d(3, 8, kernel_size=(3, 5), bias=False)
    optimizer = ConvolutionOptimizer(
        [layer.weight],
        lr=1e-2,
        momentum=0.95,
        weight_decay=0.0,
        nesterov=True,
        weight_decay_method="decoupled",
        fp32_matmul_prec="highest",
    )
    images = torch.randn(4, 3, 16, 16)
    for step in range(3):
        loss = (layer(images) - 1.0).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"step {step}  loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
