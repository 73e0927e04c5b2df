"""Descent in a metric made of recent gradients."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any, ClassVar, get_args

import torch
from torch import Tensor
from torch.optim.optimizer import ParamsT, StateDict

from steepest.geometry.window import Metric
from steepest.linalg.rows import wide_dtype
from steepest.optim.base import Entry, SteepestOptimizer
from steepest.optim.decay import WeightDecayMethod, kept_in
from steepest.optim.hooks import Hooks
from steepest.optim.momentum import average_, averaged
from steepest.optim.window_blocks import blocks, cohorts
from steepest.optim.window_checks import (
    Block,
    Cut,
    HistoryDtype,
    Nonfinite,
    RidgeScale,
    check_metric_of,
    check_options,
    check_shared,
)
from steepest.optim.window_memory import check_fits
from steepest.optim.window_metrics import (
    Extension,
    compress_,
    coupled,
    extend,
    metric_directions_,
    pack_directions_,
    pack_step_,
    take_,
)
from steepest.optim.window_state import Pack


class ProjectionRegularizedSGD(SteepestOptimizer):
    r"""Steepest descent in a metric made of the recent gradients of all parameters.

    All parameters of all groups form one vector of p entries (see ``block``). With g the gradient
    and G_t the p × k matrix of the last k = min(t, m) gradients, m = ``history_size``,

    $$
    \begin{aligned}
    C_t &= G_t G_t^T / k, \qquad S_1 = C_1 + λI, \qquad S_t = βS_{t-1} + (1-β)C_t + λI \\
    K &= G_t^T S_t^{-1} G_t + ρI, \qquad P = S_t^{-1/2} G_t K^{-1} G_t^T S_t^{-1/2} \\
    d &= S_t^{-1/2} [(1-α)P + αI] S_t^{-1/2} g, \qquad W ← W - ηd
    \end{aligned}
    $$

    with each group's own η. α = 1 is the damped empirical-Fisher step.

    The default form of the metric works on the Gram matrix of the columns alone and reads the
    window twice: memory m·p and a small m × m matrix for each tensor, time proportional to m·p.
    With β > 0, columns older than the
    window count on with falling weight and are kept until that weight is ``tail_tolerance`` of the
    largest.

    A missing gradient counts as zeros, and its parameter is not moved. A step on which no parameter
    has a gradient changes nothing.

    Args:
        params: parameters, groups or named parameters, of any shapes.
        lr: η, at least 0; may differ by group.
        history_size: m, number of recent gradients, at least 1.
        beta: β in [0, 1), decay of the metric.
        ridge: λ > 0, added to the metric at every step.
        rho: ρ > 0, damping of the projection.
        alpha: α in [0, 1], share of the plain preconditioned gradient.
        max_exact_parameters: the largest p that ``metric="dense"`` accepts.
        metric: "window", by algebra on the Gram matrix; "dense", the formula as written, with
            p × p matrices, in float32 by a pseudo-inverse where λ is lost beside the squared
            gradients; "diagonal", with the covariance replaced by its
            diagonal in S and the projection as it stands; "auto" is "window".
        tail_tolerance: in [0, 1), for "window" with β > 0: the weight, relative to the largest,
            under which a column older than the window is dropped; 0 keeps all. The default drops
            what is below the rounding of float64.
        rank: R, for "window" with β > 0: columns older than the window are compressed into R
            whenever no slot is free, of m + 2R at most; None for no such bound.
        cut: what becomes of the mass δ that this cuts: "ridge" adds it to λ_t, as in frequent
            directions, "drop" forgets it.
        block: which parameters make one vector: "global" all, "parameter" each tensor its own,
            "group" each group its own.
        power: q, 1 or 0.5: d = S^{-q/2}[(1 - α)P + αI]S^{-q/2} g. With 0.5 and α = 1 it is
            S^{-1/2} g, a windowed full-matrix AdaGrad (GGT).
        ridge_scale: "absolute", or "relative" for λ in units of τ, the mean squared norm of the
            columns of the window, with d multiplied by τ^{q - 1/2}: the step then does not
            depend on the scale of the loss.
        max_norm: longest step ‖ηd‖ of a block, before momentum; None for no limit.
        warmup: whether d is multiplied by k/m while the window fills.
        momentum: μ in [0, 1); M ← μM + (1 - μ)d replaces d.
        nesterov: whether (1 - μ)d + μM does.
        weight_decay: at least 0; may differ by group.
        weight_decay_method: "decoupled", "independent", "l2", "palm" or "cautious".
        history_stride: every how many steps a gradient is kept; until then the newest column is
            replaced.
        history_dtype: of the columns, "auto" for that of the parameter, "float32", "bfloat16" or
            "float64"; the Gram matrix is that of what is stored.
        history_device: of the columns, such as "cpu"; None for that of the parameter.
        nonfinite: "raise", or "skip" to leave out a step with a gradient that is not finite or
            too large, without a trace.
        hooks: around the update of each parameter: names or pairs (name, number), "hyperball",
            "radial_brake" and "relative_update".
        maximize: whether to step along the gradient instead of against it.

    Raises:
        ValueError: for an option out of range, one that must be equal in all groups and is not, one
            that has no effect with the others, or a window that does not fit into free memory,
            with the bytes that it needs and what would fit.
        RuntimeError: for ``metric="dense"`` with more than ``max_exact_parameters`` parameters, and
            at the step for a gradient that is sparse, not finite, or so large that its square is
            not, before anything has changed.

    State, the same for every parameter that has had a gradient:
        ``step``, ``since`` (steps since a column was last kept) and ``damping``, numbers;
        ``column_step`` and ``weights`` ``(slots,)``, what the slots hold; ``history``
        ``(slots, *shape)``, its part of the columns; its part of the metric: ``gram``
        ``(slots, slots)`` in float64, ``metric_diagonal`` ``(numel,)`` or ``metric_rows``
        ``(numel, p)``; and with momentum ``momentum_buffer``, M.

    Example:
        >>> import torch
        >>> weight = torch.nn.Parameter(torch.tensor([1.0, -2.0]))
        >>> optimizer = ProjectionRegularizedSGD([weight], lr=0.1, ridge=1.0, alpha=1.0)
        >>> weight.square().sum().backward()  # g = (2, −4), S⁻¹g = g/(1 + ‖g‖²)
        >>> optimizer.step()
        >>> weight.data
        tensor([ 0.9905, -1.9810])

    Source: relatives are M-FAC (arXiv:2107.03356), GGT (arXiv:1806.02958), frequent directions
    (arXiv:1501.01711), Sketchy (arXiv:2302.03764) and the theory of Flynn, The duality structure
    gradient descent algorithm (arXiv:1708.00523).
    """

    _required_state: ClassVar[frozenset[str]] = frozenset(
        {"step", "damping", "column_step", "weights", "history"}
    )
    _nonfinite: ClassVar[tuple[str, ...]] = get_args(Nonfinite)

    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor = 1e-2,
        history_size: int = 4,
        beta: float = 0.0,
        ridge: float = 1e-2,
        rho: float = 0.1,
        alpha: float = 0.1,
        max_exact_parameters: int = 4096,
        *,
        metric: Metric = "auto",
        tail_tolerance: float = 1e-16,
        rank: int | None = None,
        cut: Cut = "ridge",
        block: Block = "global",
        power: float = 1.0,
        ridge_scale: RidgeScale = "absolute",
        max_norm: float | None = None,
        warmup: bool = False,
        momentum: float = 0.0,
        nesterov: bool = False,
        weight_decay: float = 0.0,
        weight_decay_method: WeightDecayMethod = "decoupled",
        history_stride: int = 1,
        history_dtype: HistoryDtype = "auto",
        history_device: str | None = None,
        nonfinite: Nonfinite = "raise",
        hooks: Hooks = (),
        maximize: bool = False,
    ) -> None:
        super().__init__(
            params,
            {
                "lr": lr,
                "history_size": history_size,
                "beta": beta,
                "ridge": ridge,
                "rho": rho,
                "alpha": alpha,
                "max_exact_parameters": max_exact_parameters,
                "metric": metric,
                "tail_tolerance": tail_tolerance,
                "rank": rank,
                "cut": cut,
                "block": block,
                "power": power,
                "ridge_scale": ridge_scale,
                "max_norm": max_norm,
                "warmup": warmup,
                "momentum": momentum,
                "nesterov": nesterov,
                "weight_decay": weight_decay,
                "weight_decay_method": weight_decay_method,
                "history_stride": history_stride,
                "history_dtype": history_dtype,
                "history_device": None if history_device is None else str(history_device),
                "nonfinite": nonfinite,
                "hooks": hooks,
                "maximize": maximize,
            },
        )

    # --- checks ---------------------------------------------------------------------------------

    def _check_options(self, group: Mapping[str, Any]) -> None:
        super()._check_options(group)
        check_options(group)

    def _check_group(self, index: int) -> None:
        super()._check_group(index)
        check_shared(self.param_groups)
        group = self.param_groups[index]
        most = group["max_exact_parameters"]
        for block in blocks(self.param_groups) if group["metric"] == "dense" else ():
            total = sum(param.numel() for param, _, _ in block)
            if total > most and block[-1][1]["metric"] == "dense":
                raise RuntimeError(
                    f"metric='dense' forms {total} × {total} matrices, and max_exact_parameters is "
                    f"{most}; use metric='window', which is the same step without them, or "
                    "metric='diagonal'"
                )
        check_fits(self.param_groups, self.state)

    def _check_gradients(self, entries: Sequence[Entry]) -> None:
        super()._check_gradients(entries)
        check_shared(self.param_groups)
        for entry in entries:
            state = self.state.get(entry.param)
            if state:
                check_metric_of(state, entry.group["metric"], entry.name)
                if "metric_rows" in state:
                    self._check_dense_rows(entry, state["metric_rows"].shape[1])

    def _check_dense_rows(self, entry: Entry, columns: int) -> None:
        for block in blocks(self.param_groups):
            size = sum(param.numel() for param, _, _ in block)
            if columns > size and any(param is entry.param for param, _, _ in block):
                raise ValueError(
                    "a parameter was taken out of the groups, and metric='dense' cannot forget "
                    "its part of the metric; make a new optimizer"
                )

    def _check_loaded(self, state_dict: StateDict) -> None:
        super()._check_loaded(state_dict)
        groups = [{**self.defaults, **group} for group in state_dict["param_groups"]]
        check_shared(groups)
        for block in blocks(groups):
            states = [state_dict["state"].get(key) for key, _, _ in block]
            steps = {state["step"] for state in states if state}
            if len(steps) > 1:
                raise ValueError(
                    f"the loaded parameters have seen different numbers of steps ({sorted(steps)}),"
                    " though they share one window"
                )

    def _check_loaded_state(
        self, state: Mapping[str, Any], param: Tensor, group: Mapping[str, Any], name: str
    ) -> None:
        super()._check_loaded_state(state, param, group, name)
        check_metric_of(state, group["metric"], name)
        if state["history"].shape[1:] != param.shape:
            raise ValueError(
                f"the loaded history of {name} has columns of shape "
                f"{tuple(state['history'].shape[1:])}, the parameter {tuple(param.shape)}"
            )

    def _state_device(self, name: str, param: Tensor, group: Mapping[str, Any]) -> torch.device:
        if name in ("gram", "column_step", "weights"):
            return torch.device("cpu")
        if name == "history" and group["history_device"] is not None:
            return torch.device(group["history_device"])
        return super()._state_device(name, param, group)

    def window_spectra(self) -> list[list[float]]:
        """Return the eigenvalues of the metric above its damping, for each block that has columns.

        Those of B diag(w) Bᵀ, the largest first, by way of the Gram matrix of the columns; empty
        for metrics that have no Gram matrix.
        """
        result = []
        for block in blocks(self.param_groups):
            states = [self.state[param] for param, _, _ in block if param in self.state]
            grams = [state["gram"].double() for state in states if "gram" in state]
            if not grams:
                continue
            root = states[0]["weights"].double().clamp_min(0.0).sqrt()
            values = torch.linalg.eigvalsh(root[:, None] * sum(grams) * root[None]).flip(0)
            result.append([float(value) for value in values if value > 0.0])
        return result

    # --- the step -------------------------------------------------------------------------------

    def _skips(self, entries: Sequence[Entry]) -> bool:
        return False  # the Gram matrix tells, without a pass of its own over the gradients

    def _parts(self, entries: Sequence[Entry]) -> Iterator[Sequence[Entry]]:
        if entries:  # all at once, so that all can be looked at before any is changed
            yield entries

    def _step_part(self, part: Sequence[Entry]) -> None:
        moving = {entry.param: coupled(entry) for entry in part}
        extensions = [
            extend(cohort, self.state, moving)
            for cohort in cohorts(self.param_groups, self.state, moving)
        ]
        for extension in extensions:
            if extension.fault is not None:
                if part[0].group["nonfinite"] == "skip":
                    return
                raise RuntimeError(extension.fault)
        for extension in extensions:
            if extension.by_gram:
                self._take(extension)
                continue
            directions = metric_directions_(extension, self.state)
            entries = [moving[param] for param in directions]
            self._move(entries, list(directions.values()))

    def _take(self, extension: Extension) -> None:
        """Step the blocks whose metric works on the Gram matrix of the columns."""
        coefficients, total = take_(extension, self.state)
        newest, start = extension.columns.newest, 0
        most = torch.finfo(torch.float32).max  # beyond it they would make NaN of zeros
        narrow = coefficients.clamp(-most, most).float()
        for pack in extension.packs:
            stop = start + len(pack.items)
            own = coefficients if pack.history.dtype == torch.float64 else narrow
            if not self._in_one_pass(pack):
                updates = pack_directions_(pack, own[start:stop], newest)
                entries = [item.entry for item in pack.items if item.entry is not None]
                self._move(entries, updates)
            else:
                param, group = pack.items[0].param, pack.items[0].member.group
                average = self._average(param) if group["momentum"] else None
                pack_step_(pack, own[start:stop], newest, average)
            start = stop
        compress_(extension, self.state, total)

    def _in_one_pass(self, pack: Pack) -> bool:
        entry = pack.items[0].entry
        return (
            len(pack.items) == 1
            and entry is not None
            and entry.param.is_contiguous()
            and not entry.group["nesterov"]
            and not self._hooked(entry.group)
            and entry.group["weight_decay_method"] != "cautious"
        )

    def _move(self, entries: Sequence[Entry], directions: Sequence[Tensor]) -> None:
        """Decay the weights of the entries, average their directions, and apply them."""
        if not entries:
            return
        for entry in entries:
            if (keep := kept_in(entry.group)) != 1.0:
                entry.param.mul_(keep)
        updates: list[Tensor] = []
        pairs = zip(entries, directions, strict=True)
        for _, run in groupby(pairs, key=lambda pair: id(pair[0].group)):
            alike = list(run)
            group, found = alike[0][0].group, [direction for _, direction in alike]
            if group["momentum"]:
                averages = [self._average(entry.param) for entry, _ in alike]
                average_(averages, found, momentum=group["momentum"])
                found = averaged(
                    averages, found, momentum=group["momentum"], nesterov=group["nesterov"]
                )
                if not group["nesterov"] and self._hooked(group):
                    found = [average.clone() for average in found]  # hooks may write into them
            updates += found
        self._apply(entries, updates)

    def _average(self, param: Tensor) -> Tensor:
        """Return the moving average of a parameter's directions, zeros at first."""
        state = self.state[param]
        if "momentum_buffer" not in state:
            state["momentum_buffer"] = torch.zeros_like(
                param, dtype=wide_dtype(param.dtype), memory_format=torch.contiguous_format
            )
        buffer: Tensor = state["momentum_buffer"]
        return buffer
