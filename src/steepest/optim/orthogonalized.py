"""The base of the orthogonalized family."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, get_args

import torch
from torch import Tensor
from torch.optim.optimizer import ParamsT

from steepest.linalg.precision import MatmulPrecision, matmul_precision
from steepest.optim import checks
from steepest.optim.base import Entry, SteepestOptimizer
from steepest.optim.checked import FOREIGN_OPTIONS, Nonfinite
from steepest.optim.decay import WeightDecayMethod
from steepest.optim.hooks import Hooks
from steepest.optim.low_precision import LowPrecision, is_narrow, narrow_, wide_weight
from steepest.optim.momentum import average_, averaged

_log = logging.getLogger(__name__)


def identity(x: Tensor) -> Tensor:
    """Return ``x``: the map of an optimizer that was given none."""
    return x


class OrthogonalizedOptimizer(SteepestOptimizer):
    r"""Momentum SGD whose updates pass through a map that orthogonalizes them.

    For each parameter W with gradient G, in this order:

    $$
    \begin{aligned}
    &\text{decay:} && W ← W - ηλW \;\text{(decoupled)},\quad W ← W - λW \;\text{(independent)},
                      \quad G ← G + λW \;\text{(l2)} \\
    &\text{average:} && M ← μM + (1-μ)G,\quad M_0 = 0 \\
    &\text{look ahead:} && D = (1-μ)G + μM \;\text{with Nesterov, else}\; D = M \\
    &\text{orthogonalize:} && U = \text{orthogonalize}(W, D, \text{options of the group}) \\
    &\text{update:} && W ← W - ηU \;\text{between the two weight-update hooks}
    \end{aligned}
    $$

    Use it with a map, ``scaled_orthogonalize_fn``, or subclass it and override ``orthogonalize``,
    to split a fused projection or reshape a convolution, and the hooks
    ``pre_weight_update_fn_inplace`` and ``post_weight_update_fn_inplace``, to keep norms.

    Args:
        params: parameters, groups or named parameters. Without an ``orthogonalize`` of your own,
            each must be a matrix.
        lr: η, at least 0.
        momentum: μ in [0, 1).
        weight_decay: λ, at least 0.
        nesterov: whether to look ahead.
        weight_decay_method: "decoupled", "independent", "l2", "palm" or "cautious".
        fp32_matmul_prec: ``torch.set_float32_matmul_precision`` while orthogonalizing, restored
            after: "highest", "high" or "medium".
        scaled_orthogonalize_fn: maps D to U; it gets a tensor of its own to work on. Without one
            it is the identity and the step is plain momentum SGD; a warning is logged, unless
            ``orthogonalize`` is overridden.
        hooks: weight-update hooks, names or pairs (name, number): "hyperball" with a radius,
            "radial_brake" with the share of growth that is left, "relative_update" with a factor.
        maximize: whether to step along the gradient instead of against it.
        nonfinite: what a gradient that is not finite does: "raise" an error, "skip" this step of
            all parameters without a trace, or "pass" into the step. On an accelerator the check
            waits for the gradients, once a step.
        low_precision: how weights in 16 bits take a step: rounded to "nearest", which loses what
            is below half of their last bit; "stochastic", rounded at random so that the mean is
            right, from a seed of the step; or with a "float32" copy in the state.
        **kwargs: more options with their defaults, which groups may override and ``orthogonalize``
            receives. An override should end in ``**kwargs``: it gets all options of the group,
            with those that schedulers add.

    Raises:
        ValueError: for an option out of range, or a parameter that is not a matrix while
            ``orthogonalize`` is not overridden.

    State:
        ``momentum_buffer``: M, of the parameter's shape; where they are needed ``step``, a number,
        ``hyperball_radius`` and ``float32_weight``.

    Example:
        >>> from steepest.linalg import newton_schulz
        >>> weight = torch.nn.Parameter(torch.zeros(4, 3))
        >>> optimizer = OrthogonalizedOptimizer(
        ...     [weight], lr=0.1, momentum=0.9, weight_decay=0.0, nesterov=False,
        ...     weight_decay_method="decoupled", fp32_matmul_prec="highest",
        ...     scaled_orthogonalize_fn=newton_schulz,
        ... )
        >>> weight.grad = torch.eye(4, 3)
        >>> optimizer.step()

    Source: Carlson, Cevher & Carin, Stochastic spectral descent for restricted Boltzmann machines
    (AISTATS 2015); Carlson et al., Preconditioned spectral descent for deep learning (NIPS 2015);
    Jordan et al., Muon (2024).
    """

    _required_state: ClassVar[frozenset[str]] = frozenset({"momentum_buffer"})
    _open_options: ClassVar[bool] = True

    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor,
        momentum: float,
        weight_decay: float,
        *,
        nesterov: bool,
        weight_decay_method: WeightDecayMethod,
        fp32_matmul_prec: MatmulPrecision,
        scaled_orthogonalize_fn: Callable[[Tensor], Tensor] | None = None,
        hooks: Hooks = (),
        maximize: bool = False,
        nonfinite: Nonfinite = "raise",
        low_precision: LowPrecision = "nearest",
        **kwargs: Any,
    ) -> None:
        self.scaled_orthogonalize_fn = scaled_orthogonalize_fn or identity
        if scaled_orthogonalize_fn is None and not self._overrides_orthogonalize():
            _log.warning(
                "%s has no scaled_orthogonalize_fn and uses the identity: its step is plain "
                "momentum SGD",
                type(self).__name__,
            )
        options = {
            "lr": lr,
            "momentum": momentum,
            "weight_decay": weight_decay,
            "nesterov": nesterov,
            "weight_decay_method": weight_decay_method,
            "fp32_matmul_prec": fp32_matmul_prec,
            "hooks": hooks,
            "maximize": maximize,
            "nonfinite": nonfinite,
            "low_precision": low_precision,
        }
        super().__init__(params, {**options, **kwargs})

    def orthogonalize(self, param: Tensor, grad: Tensor, **kwargs: Any) -> Tensor:
        """Return the update for a parameter. Override it to see parameters in another way.

        Args:
            param: the weight W, after weight decay.
            grad: D, the averaged gradient; a tensor of its own, which may be changed.
            **kwargs: the options of the parameter's group.

        Returns:
            U, of the shape of ``param``.

        Raises:
            ValueError: if ``grad`` is not a matrix.
        """
        if grad.ndim != 2:
            raise ValueError(
                f"only matrices can be orthogonalized, got shape {tuple(grad.shape)}; override "
                "orthogonalize to reshape other parameters"
            )
        return self.scaled_orthogonalize_fn(grad)

    @classmethod
    def _overrides_orthogonalize(cls) -> bool:
        return cls.orthogonalize is not OrthogonalizedOptimizer.orthogonalize

    def _check_options(self, group: Mapping[str, Any]) -> None:
        super()._check_options(group)
        checks.below_one("momentum", group["momentum"])
        checks.flag("nesterov", group["nesterov"])
        checks.choice("low_precision", group["low_precision"], get_args(LowPrecision))
        checks.choice("fp32_matmul_prec", group["fp32_matmul_prec"], get_args(MatmulPrecision))
        reserved = sorted({"self", "param", "grad"} & group.keys())
        if reserved:
            raise ValueError(
                f"an option cannot be called {', '.join(reserved)}: orthogonalize receives the "
                "parameter and its gradient under these names"
            )
        foreign = sorted(name for name in FOREIGN_OPTIONS if group.get(name) is True)
        if foreign:
            raise ValueError(
                f"{foreign[0]}=True is an option of torch's own optimizers and has no effect here"
            )
        if "scaled_orthogonalize_fn" in group:
            raise ValueError(
                "scaled_orthogonalize_fn belongs to the whole optimizer and not to a parameter "
                "group; override orthogonalize and read an option of the group there"
            )

    def _check_parameter(self, param: Tensor, group: Mapping[str, Any], name: str) -> None:
        super()._check_parameter(param, group, name)
        if param.ndim != 2 and not self._overrides_orthogonalize():
            raise ValueError(
                f"{name} has shape {tuple(param.shape)}, and only matrices can be orthogonalized; "
                "give vectors to another optimizer, or override orthogonalize to reshape them"
            )

    def _check_loaded_state(
        self, state: Mapping[str, Any], param: Tensor, group: Mapping[str, Any], name: str
    ) -> None:
        super()._check_loaded_state(state, param, group, name)
        if state["momentum_buffer"].shape != param.shape:
            raise ValueError(
                f"the loaded momentum_buffer of {name} has shape "
                f"{tuple(state['momentum_buffer'].shape)}, the parameter {tuple(param.shape)}"
            )

    def _widen(self, part: Sequence[Entry]) -> Sequence[Entry]:
        return [
            entry._replace(
                weight=wide_weight(
                    entry.param, self.state[entry.param], method=entry.group["low_precision"]
                )
            )
            if is_narrow(entry.param, entry.group["low_precision"])
            else entry
            for entry in part
        ]

    def _narrow(self, part: Sequence[Entry]) -> None:
        for entry in part:
            if entry.weight is not entry.param:
                narrow_(
                    entry.param,
                    entry.weight,
                    self.state[entry.param],
                    method=entry.group["low_precision"],
                    place=entry.place,
                )

    def _count_steps(self, part: Sequence[Entry]) -> None:
        """Count the steps of the parameters whose step depends on their number."""
        for entry in part:
            if self._counts(entry):
                state = self.state[entry.param]
                state["step"] = state.get("step", 0) + 1

    def _counts(self, entry: Entry) -> bool:
        method = entry.group["low_precision"]
        return method == "stochastic" and is_narrow(entry.param, method)

    def _step_part(self, part: Sequence[Entry]) -> None:
        self._count_steps(part)
        super()._step_part(part)

    def _directions(self, part: Sequence[Entry], gradients: Sequence[Tensor]) -> list[Tensor]:
        return [
            self._direction(entry, gradient)
            for entry, gradient in zip(part, gradients, strict=True)
        ]

    def _direction(self, entry: Entry, gradient: Tensor) -> Tensor:
        options = without_params(entry.group)
        buffer, momentum = self._buffer(entry.param), options["momentum"]
        average_([buffer], [gradient], momentum=momentum)
        nesterov = options["nesterov"]
        (ahead,) = averaged([buffer], [gradient], momentum=momentum, nesterov=nesterov)
        if not nesterov:
            ahead = ahead.clone()  # the map may work in place
        with matmul_precision(options["fp32_matmul_prec"]):
            update = self.orthogonalize(entry.weight, ahead, **options)
        # an override may return what a hook must not write to
        aliased = any(_share_storage(update, kept) for kept in (entry.gradient, buffer))
        return update.clone() if aliased else update

    def _buffer_dtype(self, param: Tensor) -> torch.dtype:
        """Dtype of M: that of the parameter."""
        return param.dtype

    def _buffer(self, param: Tensor) -> Tensor:
        """M of a parameter, zeros at first."""
        state = self.state[param]
        if "momentum_buffer" not in state:
            state["momentum_buffer"] = torch.zeros_like(
                param, dtype=self._buffer_dtype(param), memory_format=torch.preserve_format
            )
        buffer: Tensor = state["momentum_buffer"]
        return buffer


def without_params(group: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of a parameter group."""
    return {name: value for name, value in group.items() if name != "params"}


def _share_storage(left: Tensor, right: Tensor) -> bool:
    pointer = left.untyped_storage().data_ptr()
    return pointer != 0 and pointer == right.untyped_storage().data_ptr()
