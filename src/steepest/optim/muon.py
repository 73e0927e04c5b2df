"""Muon: momentum orthogonalized by Newton–Schulz."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar, get_args

import torch
from torch import Tensor
from torch.optim.optimizer import ParamsT

from steepest.geometry.batching import batch_limit, batches
from steepest.geometry.blocks import BlockAxis, Blocks, block_shapes
from steepest.geometry.matrices import (
    Layout,
    MatrixBatch,
    matrix_shape,
    sides,
    view_as_batch,
)
from steepest.geometry.scale import Scale, shape_factor
from steepest.geometry.spectral import (
    IterationDtype,
    resolve_dtype,
    spectral_directions,
    spectral_directions_,
    spectral_step_,
)
from steepest.linalg.precision import MatmulPrecision, matmul_precision
from steepest.linalg.schedules import Schedule, coefficients
from steepest.optim import checks
from steepest.optim.base import Entry
from steepest.optim.decay import WeightDecayMethod, kept_share
from steepest.optim.momentum import average_, averaged
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
        schedule: coefficient table, a name in ``steepest.linalg.SCHEDULES`` ("polar_express",
            "simple", "quintic", …) or your own sequence of (a, b, c), as ``minimax`` makes them.
        steps: number of iteration steps.
        scale: "match_rms_adamw" 0.2·√max(out, in); "original" √max(1, out/in); "spectral"
            √max(out, in); "unit_rms" √(out/in); "none" 1.
        layout: "matrix" (out, in); "convolution" (out, in, kernel…) seen as out × (in·kernel);
            "stack" (…, out, in), each matrix by itself.
        transposed: whether inputs come before outputs in storage, as in transposed convolutions.
        groups: groups of a convolution, each of which has its own matrix.
        split: sizes of unequal blocks along ``block_axis``, as (q, k, v) of a fused projection;
            each is orthogonalized and scaled by itself.
        interleaved: how often the pattern of ``split`` repeats along the axis.
        heads: number of equal blocks along the axis, or one for each block of ``split``.
        block_axis: "rows", the outputs, or "columns", the inputs.
        iteration_dtype: "auto", float32 on a CPU whatever the weights' dtype (float64 for float64
            weights), bfloat16 on accelerators; or "float64", "float32", "bfloat16", "float16".
        batch_bytes: small matrices with equal sides, or nearly so, are iterated together, as many
            as fit into this memory; 0 takes one parameter at a time. Beside weights and state, the
            step needs about four times its largest parameter, or eight times this if that is more.
        fp32_matmul_prec: precision of float32 products in the iteration, "highest", "high" or
            "medium".

    Raises:
        ValueError: for an option out of range, an unknown option of a group, or a parameter whose
            shape the layout does not fit.

    State:
        ``momentum_buffer``: M, of the parameter's shape; float32 for weights in 16 bits, in which
        an average would lose what is small beside it, else of their dtype.

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
        transposed: bool = False,
        groups: int = 1,
        split: Sequence[int] | None = None,
        interleaved: int = 1,
        heads: int | Sequence[int] = 1,
        block_axis: BlockAxis = "rows",
        iteration_dtype: IterationDtype = "auto",
        batch_bytes: int = 8 << 20,
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
            transposed=transposed,
            groups=groups,
            split=split,
            interleaved=interleaved,
            heads=heads,
            block_axis=block_axis,
            iteration_dtype=iteration_dtype,
            batch_bytes=batch_bytes,
        )

    def orthogonalize(self, param: Tensor, grad: Tensor, **kwargs: Any) -> Tensor:
        """Return the scaled polar factor of each matrix of the parameter.

        Args:
            param: the weight W.
            grad: D, the averaged gradient; not changed.
            **kwargs: the options of the parameter's group.
        """
        (direction,) = self._block_directions([grad], kwargs)
        return direction

    def _block_directions(
        self, averages: Sequence[Tensor], group: Mapping[str, Any]
    ) -> list[Tensor]:
        return spectral_directions(
            averages,
            Blocks.of(group),
            schedule=group["schedule"],
            steps=group["steps"],
            scale=group["scale"],
            iteration_dtype=group["iteration_dtype"],
            batch_bytes=group["batch_bytes"],
        )

    def _parts(self, entries: Sequence[Entry]) -> Iterator[Sequence[Entry]]:
        """Divide into batches of matrices of one dtype and device and with equal options."""
        if self._overrides(("orthogonalize",), Muon):
            yield from super()._parts(entries)
            return
        alike: dict[Any, list[Entry]] = {}
        keys = {id(group): _key(group) for group in self.param_groups}
        for entry in entries:
            if entry.param.numel() == 0:
                yield (entry,)
                continue
            key = keys[id(entry.group)], entry.param.dtype, entry.param.device
            alike.setdefault(key, []).append(entry)
        for bucket in alike.values():
            param, group = bucket[0].param, bucket[0].group
            plain = Blocks.of(group).plain
            divided = batches(
                # of a parameter of several blocks its size alone counts here
                [
                    matrix_shape(entry.param.shape, group["layout"])
                    if plain
                    else (1, entry.param.shape[0], entry.param.shape[1:].numel())
                    for entry in bucket
                ],
                dtype=resolve_dtype(param, group["iteration_dtype"]),
                batch_bytes=group["batch_bytes"],
            )
            yield from ([bucket[place] for place in batch] for batch in divided)

    def _step_part(self, part: Sequence[Entry]) -> None:
        onto = self._target(part)
        if onto is None:
            super()._step_part(part)
            return
        (entry,) = part
        group = entry.group
        batch = self._averages(part, [entry.gradient])
        lr = float(group["lr"])
        with matmul_precision(group["fp32_matmul_prec"]):
            spectral_step_(
                batch,
                onto,
                lr=lr,
                keep=_kept(group),
                schedule=group["schedule"],
                steps=group["steps"],
                scale=group["scale"],
                limit=_limit(entry.param, group),
            )

    def _target(self, part: Sequence[Entry]) -> Tensor | None:
        """The weight as the last product of the iteration can write it; None where it cannot.

        It cannot where a method of a subclass or coupled decay comes between, in another precision
        than the weight's, for several weights, which do not lie in memory as one batch, and where
        a product with zero, which is left out, might hide what is not finite.
        """
        param, group = part[0].param, part[0].group
        if len(part) > 1 or param.numel() == 0 or not Blocks.of(group).plain:
            return None
        if self._hooked() or self._overrides(("orthogonalize", "_directions", "_apply"), Muon):
            return None
        if group["weight_decay_method"] == "l2" and group["weight_decay"] != 0.0:
            return None
        if float(group["lr"]) == 0.0 or _kept(group) == 0.0:
            return None
        dtype = resolve_dtype(param, group["iteration_dtype"])
        if param.dtype != dtype or dtype.itemsize < 4 or group["fp32_matmul_prec"] != "highest":
            return None
        return view_as_batch(param, group["layout"])

    def _directions(self, part: Sequence[Entry], gradients: Sequence[Tensor]) -> list[Tensor]:
        if self._overrides(("orthogonalize",), Muon):
            return super()._directions(part, gradients)
        group = part[0].group
        params = [entry.param for entry in part]
        if not Blocks.of(group).plain:
            momentum, nesterov = group["momentum"], group["nesterov"]
            buffers = self._averaging_buffers(part, gradients)
            averages = averaged(buffers, gradients, momentum=momentum, nesterov=nesterov)
            with matmul_precision(group["fp32_matmul_prec"]):
                updates = self._block_directions(averages, group)
            return [x.to(param.dtype) for x, param in zip(updates, params, strict=True)]
        batch = self._averages(part, gradients)
        if params[0].numel() == 0:
            return [torch.zeros_like(param) for param in params]
        with matmul_precision(group["fp32_matmul_prec"]):
            directions = spectral_directions_(
                batch,
                schedule=group["schedule"],
                steps=group["steps"],
                scale=group["scale"],
                limit=_limit(params[0], group),
            )
        updates = [
            x if x.dtype == param.dtype else x.to(param.dtype)
            for x, param in zip(directions, params, strict=True)
        ]
        # a hook may want to view it otherwise
        return [update.contiguous() for update in updates] if self._hooked() else updates

    def _buffer_dtype(self, param: Tensor) -> torch.dtype:
        # an override of orthogonalize gets D in the dtype of the weights, as the base gives it
        if self._overrides(("orthogonalize",), Muon):
            return super()._buffer_dtype(param)
        return torch.float32 if param.dtype.itemsize < 4 else param.dtype

    def _averaging_buffers(
        self, part: Sequence[Entry], gradients: Sequence[Tensor]
    ) -> list[Tensor]:
        """M of each entry, after the gradients have been averaged into it."""
        buffers = [self._buffer(entry.param) for entry in part]
        average_(buffers, gradients, momentum=part[0].group["momentum"])
        return buffers

    def _averages(self, part: Sequence[Entry], gradients: Sequence[Tensor]) -> MatrixBatch:
        """Average the gradients of a part, and return what is to be orthogonalized."""
        group, params = part[0].group, [entry.param for entry in part]
        momentum, nesterov = group["momentum"], group["nesterov"]
        buffers = self._averaging_buffers(part, gradients)
        batch = MatrixBatch(
            [param.shape for param in params],
            layout=group["layout"],
            dtype=resolve_dtype(params[0], group["iteration_dtype"]),
            device=params[0].device,
        )
        target = batch.single()
        if (
            nesterov
            and target is not None
            and target.dtype == buffers[0].dtype == gradients[0].dtype
        ):
            torch.lerp(gradients[0], buffers[0], momentum, out=target)  # without a copy between
        else:
            batch.fill_(averaged(buffers, gradients, momentum=momentum, nesterov=nesterov))
        return batch

    def _check_options(self, group: Mapping[str, Any]) -> None:
        super()._check_options(group)
        coefficients(group["schedule"], group["steps"])
        shape_factor(group["scale"], 1, 1)
        Blocks.of(group)
        checks.count("batch_bytes", group["batch_bytes"], least=0)
        checks.choice("iteration_dtype", group["iteration_dtype"], get_args(IterationDtype))

    def _check_parameter(self, param: Tensor, group: Mapping[str, Any], name: str) -> None:
        super()._check_parameter(param, group, name)
        try:
            block_shapes(tuple(param.shape), Blocks.of(group))
        except ValueError as error:
            raise ValueError(
                f"{name} cannot be stepped by {type(self).__name__}: {error}"
            ) from None


def _limit(param: Tensor, group: Mapping[str, Any]) -> int:
    """How many matrices like those of the parameter are iterated at once."""
    return batch_limit(
        *sides(param.shape, group["layout"]),
        resolve_dtype(param, group["iteration_dtype"]),
        batch_bytes=group["batch_bytes"],
    )


def _kept(group: Mapping[str, Any]) -> float:
    """What weight decay leaves of the weights."""
    return kept_share(
        lr=float(group["lr"]),
        weight_decay=group["weight_decay"],
        method=group["weight_decay_method"],
    )


def _key(group: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    """What must be equal for parameters of two groups to be stepped together."""
    names = sorted(group.keys() - {"params", "param_names", "name"})
    return tuple((name, repr(group[name])) for name in names)
