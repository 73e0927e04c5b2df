"""Muon: momentum orthogonalized by Newton–Schulz."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, get_args

from torch import Tensor
from torch.optim.optimizer import ParamsT

from steepest.geometry.matrices import Layout, matrix_shape
from steepest.geometry.scale import Scale, shape_factor
from steepest.geometry.spectral import IterationDtype, spectral_direction
from steepest.linalg.precision import MatmulPrecision
from steepest.linalg.schedules import Schedule, coefficients
from steepest.optim import checks
from steepest.optim.decay import WeightDecayMethod
from steepest.optim.orthogonalized import OrthogonalizedOptimizer


class Muon(OrthogonalizedOptimizer):
    r"""Momentum orthogonalized by Newton–Schulz, for the hidden matrices of a network.

    $$
    M ← μM + (1-μ)G, \qquad D = (1-μ)G + μM, \qquad W ← (1 - ηλ)W - η\,f\,UV^T
    $$

    with UΣVᵀ = D and the factor f of ``scale``. Embeddings, the output head and vectors are better
    stepped by AdamW; with the default scale, its learning rate and decay serve both.

    Args:
        params: matrices, groups or named parameters; a group with another ``layout`` may hold
            convolutions or stacks.
        lr: η, at least 0. With the default ``scale`` a value tuned for AdamW carries over.
        momentum: μ in [0, 1).
        weight_decay: λ, at least 0; decoupled decay uses the unscaled η, whatever the shape.
        nesterov: whether D looks ahead; else D = M.
        weight_decay_method: "decoupled", "independent" or "l2".
        schedule: coefficient table, "simple", "quintic" or "polar_express", or your own sequence of
            (a, b, c).
        steps: number of iteration steps.
        scale: "match_rms_adamw" 0.2·√max(out, in); "original" √max(1, out/in); "spectral"
            √max(out, in); "unit_rms" √(out/in); "none" 1.
        layout: "matrix" (out, in); "convolution" (out, in, kernel…) seen as out × (in·kernel);
            "stack" (…, out, in), each matrix by itself.
        iteration_dtype: "auto", float32 on a CPU whatever the weights' dtype (float64 for float64
            weights), bfloat16 on accelerators; or "float64", "float32", "bfloat16".
        fp32_matmul_prec: precision of float32 products in the iteration, "highest", "high" or
            "medium".

    Raises:
        ValueError: for an option out of range, an unknown option of a group, or a parameter whose
            shape the layout does not fit.

    State:
        ``momentum_buffer``: M, of the parameter's shape and dtype.

    Example:
        >>> import torch
        >>> layer = torch.nn.Linear(16, 64, bias=False)
        >>> optimizer = Muon(layer.parameters(), lr=1e-3)
        >>> layer(torch.ones(1, 16)).square().sum().backward()
        >>> optimizer.step()

    Source: Jordan et al., Muon (2024), https://kellerjordan.github.io/posts/muon/; Liu et al., Muon
    is scalable for LLM training, arXiv:2502.16982.
    """

    _open_options: ClassVar[bool] = False

    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor = 1e-3,
        momentum: float = 0.95,
        weight_decay: float = 0.1,
        *,
        nesterov: bool = True,
        weight_decay_method: WeightDecayMethod = "decoupled",
        schedule: Schedule = "polar_express",
        steps: int = 5,
        scale: Scale = "match_rms_adamw",
        layout: Layout = "matrix",
        iteration_dtype: IterationDtype = "auto",
        fp32_matmul_prec: MatmulPrecision = "highest",
    ) -> None:
        super().__init__(
            params,
            lr,
            momentum,
            weight_decay,
            nesterov=nesterov,
            weight_decay_method=weight_decay_method,
            fp32_matmul_prec=fp32_matmul_prec,
            schedule=schedule,
            steps=steps,
            scale=scale,
            layout=layout,
            iteration_dtype=iteration_dtype,
        )

    def orthogonalize(self, param: Tensor, grad: Tensor, **kwargs: Any) -> Tensor:
        """Return the scaled polar factor of each matrix of the parameter.

        Args:
            param: the weight W.
            grad: D, the averaged gradient; not changed.
            **kwargs: the options of the parameter's group.
        """
        return spectral_direction(
            grad,
            layout=kwargs["layout"],
            schedule=kwargs["schedule"],
            steps=kwargs["steps"],
            scale=kwargs["scale"],
            iteration_dtype=kwargs["iteration_dtype"],
        )

    def _check_options(self, group: Mapping[str, Any]) -> None:
        super()._check_options(group)
        coefficients(group["schedule"], group["steps"])
        shape_factor(group["scale"], 1, 1)
        checks.choice("iteration_dtype", group["iteration_dtype"], get_args(IterationDtype))

    def _check_parameter(self, param: Tensor, group: Mapping[str, Any], name: str) -> None:
        super()._check_parameter(param, group, name)
        try:
            matrix_shape(param.shape, group["layout"])
        except ValueError as error:
            raise ValueError(
                f"{name} cannot be stepped by {type(self).__name__}: {error}"
            ) from None
