"""Descent in a metric made of recent gradients."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar, get_args

import torch
from torch import Tensor
from torch.optim.optimizer import ParamsT, StateDict

from steepest.geometry.window import Metric, window_coefficients
from steepest.linalg.rows import row_dots
from steepest.linalg.window import Columns, advance
from steepest.optim import checks
from steepest.optim.base import Entry, SteepestOptimizer
from steepest.optim.decay import WeightDecayMethod
from steepest.optim.window_metrics import (
    coupled,
    dense_directions,
    diagonal_directions,
    kept,
    window_step_,
    window_update_,
)
from steepest.optim.window_state import (
    Pack,
    Tracked,
    check_magnitude,
    check_metric_of,
    check_shared,
    check_squares,
    fresh_metric,
    fresh_window,
    keep_state_,
    packs,
    with_room,
)


class ProjectionRegularizedSGD(SteepestOptimizer):
    r"""Steepest descent in a metric made of the recent gradients of all parameters.

    All parameters of all groups form one vector of p entries. With g the gradient and G_t the p × k
    matrix of the last k = min(t, m) gradients, m = ``history_size``,

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
        weight_decay: at least 0; may differ by group.
        weight_decay_method: "decoupled", "independent" or "l2".

    Raises:
        ValueError: for an option out of range, or one that must be equal in all groups and is not.
        RuntimeError: for ``metric="dense"`` with more than ``max_exact_parameters`` parameters, and
            at the step for a gradient that is sparse, not finite, or so large that its square is
            not, before anything has changed.

    State, the same for every parameter that has had a gradient:
        ``step`` and ``damping``, numbers; ``column_step`` and ``weights`` ``(slots,)``, what the
        slots hold; ``history`` ``(slots, *shape)``, its part of the columns; and its part of the
        metric: ``gram`` ``(slots, slots)`` in float64, ``metric_diagonal`` ``(numel,)`` or
        ``metric_rows`` ``(numel, p)``.

    Example:
        >>> import torch
        >>> weight = torch.nn.Parameter(torch.tensor([1.0, -2.0]))
        >>> optimizer = ProjectionRegularizedSGD([weight], lr=0.1, ridge=1.0, alpha=1.0)
        >>> weight.square().sum().backward()  # g = (2, −4), S⁻¹g = g/(1 + ‖g‖²)
        >>> optimizer.step()
        >>> weight.data
        tensor([ 0.9905, -1.9810])

    Source: relatives are M-FAC (arXiv:2107.03356), GGT (arXiv:1806.02958) and the theory of
    Flynn, The duality structure gradient descent algorithm (arXiv:1708.00523).
    """

    _required_state: ClassVar[frozenset[str]] = frozenset(
        {"step", "damping", "column_step", "weights", "history"}
    )

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
        weight_decay: float = 0.0,
        weight_decay_method: WeightDecayMethod = "decoupled",
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
                "weight_decay": weight_decay,
                "weight_decay_method": weight_decay_method,
            },
        )

    # --- checks ---------------------------------------------------------------------------------

    def _check_options(self, group: Mapping[str, Any]) -> None:
        super()._check_options(group)
        checks.count("history_size", group["history_size"])
        checks.below_one("beta", group["beta"])
        checks.positive("ridge", group["ridge"])
        checks.positive("rho", group["rho"])
        checks.fraction("alpha", group["alpha"])
        checks.count("max_exact_parameters", group["max_exact_parameters"], least=0)
        checks.choice("metric", group["metric"], get_args(Metric))
        checks.below_one("tail_tolerance", group["tail_tolerance"])
        checks.choice(
            "weight_decay_method", group["weight_decay_method"], get_args(WeightDecayMethod)
        )

    def _check_group(self, index: int) -> None:
        super()._check_group(index)
        group = self.param_groups[index]
        check_shared(self.param_groups)
        total, most = self._size(), group["max_exact_parameters"]
        if group["metric"] == "dense" and total > most:
            raise RuntimeError(
                f"metric='dense' forms {total} × {total} matrices, and max_exact_parameters is "
                f"{most}; use metric='window', which is the same step without them, or "
                "metric='diagonal'"
            )

    def _check_gradients(self, entries: Sequence[Entry]) -> None:
        super()._check_gradients(entries)
        check_shared(self.param_groups)
        size = self._size()
        for entry in entries:
            if not _by_gram(entry.group):  # there, the squares are found on the way
                check_magnitude(entry, size)
            state = self.state.get(entry.param)
            if state:
                check_metric_of(state, entry.group["metric"], entry.name)
                if "metric_rows" in state and state["metric_rows"].shape[1] > size:
                    raise ValueError(
                        "a parameter was taken out of the groups, and metric='dense' cannot forget "
                        "its part of the metric; make a new optimizer"
                    )

    def _check_loaded(self, state_dict: StateDict) -> None:
        super()._check_loaded(state_dict)
        check_shared([{**self.defaults, **group} for group in state_dict["param_groups"]])
        of_parameters = [key for group in state_dict["param_groups"] for key in group["params"]]
        states = [state_dict["state"].get(key) for key in of_parameters]
        steps = {state["step"] for state in states if state}
        if len(steps) > 1:
            raise ValueError(
                f"the loaded parameters have seen different numbers of steps ({sorted(steps)}), "
                "though they share one window"
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

    # --- the step -------------------------------------------------------------------------------

    def _parts(self, entries: Sequence[Entry]) -> Iterator[Sequence[Entry]]:
        if entries:  # all at once, since they share one metric
            yield entries

    def _step_part(self, part: Sequence[Entry]) -> None:
        if not _by_gram(part[0].group):
            super()._step_part(part)
            return
        moving = [coupled(entry) for entry in part]
        columns, stepped, coefficients = self._extend_window(moving)
        if not self._hooked():
            for pack in stepped:
                window_step_(pack, coefficients, columns.newest)
            return
        directions: dict[Tensor, Tensor] = {}
        for pack in stepped:
            directions |= window_update_(pack, coefficients, columns.newest)
        for entry in part:
            entry.param.mul_(kept(entry))
        self._apply(part, [directions[entry.param] for entry in part])

    def _extend_window(self, moving: Sequence[Entry]) -> tuple[Columns, list[Pack], Tensor]:
        """Take the new columns into the Gram matrices and make room for them.

        Returns:
            What the slots hold, the parameters, and the coefficients of the direction.
        """
        options = moving[0].group
        before = self._columns()
        columns = self._advance(before, options, tail_tolerance=options["tail_tolerance"])
        newest = columns.newest
        tracked = self._tracked({entry.param: entry for entry in moving}, before, columns)
        together = packs(tracked)
        products = [row_dots(pack.history, pack.gradients()) for pack in together]
        items = [item for pack in together for item in pack.items]
        check_squares(items, torch.cat([squares.cpu() for _, squares in products]))
        # from here on the step cannot fail
        for item in items:
            keep_state_(self.state[item.param], item, columns)
        for pack, (dots, squares) in zip(together, products, strict=True):
            pack.write_gram_(newest, dots, squares)
        coefficients = window_coefficients(
            [pack.gram.sum(dim=0) for pack in together if pack.gram is not None],
            columns,
            history_size=options["history_size"],
            rho=options["rho"],
            alpha=options["alpha"],
        )
        return columns, together, coefficients

    def _directions(self, part: Sequence[Entry], gradients: Sequence[Tensor]) -> list[Tensor]:
        options = part[0].group
        before = self._columns()
        # these metrics keep their past in S, and need no columns but the window's
        columns = self._advance(before, options, tail_tolerance=1.0)
        moving = {
            entry.param: entry._replace(gradient=gradient)
            for entry, gradient in zip(part, gradients, strict=True)
        }
        tracked = self._tracked(moving, before, columns)
        for item in tracked:
            item.rows[columns.newest].copy_(item.entry.gradient.reshape(-1))
        if options["metric"] == "dense":
            directions = dense_directions(tracked, before, columns, options, size=self._size())
        else:
            directions = diagonal_directions(tracked, columns, options)
        for item in tracked:
            keep_state_(self.state[item.param], item, columns)
        return [directions[entry.param].view(entry.param.shape) for entry in part]

    @staticmethod
    def _advance(before: Columns, options: Mapping[str, Any], *, tail_tolerance: float) -> Columns:
        return advance(
            before,
            history_size=options["history_size"],
            beta=options["beta"],
            ridge=options["ridge"],
            tail_tolerance=tail_tolerance,
        )

    def _columns(self) -> Columns:
        """What the slots hold, from the state of any parameter: it is the same for all."""
        for group in self.param_groups:
            for param in group["params"]:
                state = self.state.get(param)
                if state:
                    return Columns(
                        state["step"],
                        state["column_step"].cpu(),
                        state["weights"].cpu(),
                        state["damping"],
                    )
        return Columns.empty()

    def _tracked(
        self, moving: Mapping[Tensor, Entry], before: Columns, columns: Columns
    ) -> list[Tracked]:
        """List every parameter in the window; the state of new ones is made, but not kept yet."""
        tracked, offset = [], 0
        for index, group in enumerate(self.param_groups):
            for position, param in enumerate(group["params"]):
                state = self.state.get(param)
                if param in moving or state:
                    entry = moving.get(param)
                    moves = entry is not None
                    if entry is None:
                        entry = Entry(param, torch.zeros_like(param), group, (position, index))
                    if not state:
                        state = fresh_window(param, columns.slots)
                        state |= fresh_metric(
                            param, group["metric"], before, columns.slots, offset, self._size()
                        )
                    room = with_room(state, columns.slots)
                    tracked.append(Tracked(entry, moves, room, offset))
                offset += param.numel()
        return tracked

    def _size(self) -> int:
        """p, the number of entries of all parameters."""
        return sum(param.numel() for group in self.param_groups for param in group["params"])


def _by_gram(group: Mapping[str, Any]) -> bool:
    """Whether the metric works on the Gram matrix of the columns."""
    return group["metric"] in ("auto", "window")
