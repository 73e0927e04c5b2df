"""The engine of the orthogonalized family: every variant, on every kind of weight."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, get_args

import torch
from torch import Tensor
from torch.optim.optimizer import ParamsT

from steepest.geometry.batching import batch_limit, batches
from steepest.geometry.blocks import Blocks, assemble, block_shapes, tiles, untile
from steepest.geometry.directions import Geometry
from steepest.geometry.matrices import MatrixBatch, matrix_shape, view_as_batch
from steepest.geometry.scale import (
    as_long_as_orthogonal,
    full_length,
    shape_factor,
    step_factor,
)
from steepest.geometry.spectral import resolve_dtype, spectral_step_
from steepest.linalg.normalize import iteration_dtype
from steepest.linalg.precision import matmul_precision
from steepest.linalg.spectrum import spectrum_above
from steepest.optim.base import Entry
from steepest.optim.decay import WeightDecayMethod, kept_in
from steepest.optim.matrix_options import (
    MATRIX_DEFAULTS,
    check_matrix_options,
    group_key,
    is_plain_step,
)
from steepest.optim.momentum import average_, averaged
from steepest.optim.orthogonalized import OrthogonalizedOptimizer, without_params
from steepest.optim.second_moment import (
    ENTRYWISE,
    SCALAR,
    SecondMoment,
    adapt_,
    bias_correction,
    moment_dtype,
    moment_shape,
)

if TYPE_CHECKING:
    from typing import Unpack

    from steepest.optim.matrix_options import MatrixOptions

_MOMENT = "second_moment"


class MatrixOptimizer(OrthogonalizedOptimizer):
    r"""Base of the named optimizers: the steepest direction of each matrix of each parameter.

    $$
    M ← μM + (1-μ)G, \qquad D = (1-μ)G + μM \;\text{or}\; M, \qquad
    W ← \text{decay}(W) - η\,f\,\text{direction}(D)
    $$

    A named optimizer is this class with other defaults, ``own_options``. To invent one, override
    ``direction``, the map from a stack of matrices to directions: layouts, momentum, scale, second
    moments, decay, hooks, checkpoints and checks come with it.

    Args:
        params: parameters, groups or named parameters.
        lr: η, at least 0; None for the default of the class.
        momentum: μ in [0, 1); None for the default of the class.
        weight_decay: λ, at least 0; None for the default of the class.
        **options: see ``MatrixOptions``; their defaults are what ``default_options`` returns.

    Raises:
        TypeError: for an unknown keyword.
        ValueError: for an option out of range, an unknown option of a group, or a parameter whose
            shape the layout does not fit.

    State:
        ``momentum_buffer``: M, of the parameter's shape, at least in float32. Where an option needs
        them: ``second_moment``, of the parameter's shape or a vector; ``step``, a number;
        ``hyperball_radius``; ``float32_weight``.

    Example:
        >>> import torch
        >>> class SignMomentum(MatrixOptimizer):
        ...     own_options = {"scale": "none", "momentum": 0.9}
        ...     def direction(self, matrices, **options):
        ...         return matrices.sign()
        >>> weight = torch.nn.Parameter(torch.zeros(2, 2))
        >>> optimizer = SignMomentum([weight], lr=0.5, weight_decay=0.0)
        >>> weight.grad = torch.tensor([[3.0, -1.0], [0.0, 2.0]])
        >>> optimizer.step()
        >>> weight.data
        tensor([[-0.5000,  0.5000],
                [ 0.0000, -0.5000]])
    """

    own_options: ClassVar[Mapping[str, Any]] = {}

    _open_options: ClassVar[bool] = False
    _decay_methods: ClassVar[tuple[str, ...]] = get_args(WeightDecayMethod)

    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor | None = None,
        momentum: float | None = None,
        weight_decay: float | None = None,
        **options: Unpack[MatrixOptions],
    ) -> None:
        defaults = self.default_options()
        unknown = sorted(options.keys() - defaults.keys())
        if unknown:
            raise TypeError(
                f"{type(self).__name__}() got an unexpected keyword argument {unknown[0]!r}; "
                f"options are {', '.join(sorted(defaults))}"
            )
        first = {"lr": lr, "momentum": momentum, "weight_decay": weight_decay}
        given = {name: value for name, value in first.items() if value is not None}
        super().__init__(params, **{**defaults, **options, **given})

    @classmethod
    def default_options(cls) -> dict[str, Any]:
        """Return all options with their defaults: those of the family, then the class's own."""
        return {**MATRIX_DEFAULTS, **cls.own_options}

    # --- what a subclass may fill in ------------------------------------------------------------

    def direction(self, matrices: Tensor, **options: Any) -> Tensor:
        """Return the steepest direction of each matrix, of length one in its norm.

        Args:
            matrices: D, averaged gradients ``(count, rows, columns)``; not to be changed.
            **options: those of the parameter's group.

        Returns:
            A new tensor of the same shape; ``scale`` and ``second_moment`` apply to it.
        """
        (found,) = Geometry.of(options).directions([matrices])
        return found

    def _find_directions(self, stacks: Sequence[Tensor], group: Mapping[str, Any]) -> list[Tensor]:
        """``direction`` for several stacks at once, which share batches."""
        if self._overrides(("direction",), MatrixOptimizer):
            options = without_params(group)
            return [self.direction(stack, **options) for stack in stacks]
        return Geometry.of(group).directions(stacks)

    def orthogonalize(self, param: Tensor, grad: Tensor, **kwargs: Any) -> Tensor:
        """Return the scaled direction of each matrix of the parameter.

        Args:
            param: the weight W.
            grad: D, the averaged gradient; not changed.
            **kwargs: the options of the parameter's group.
        """
        blocks = Blocks.of(kwargs)
        stacks = blocks.stacks(grad)
        found = self._scaled(stacks, kwargs)
        return assemble(found, param, blocks, iteration_dtype(param.dtype)).to(grad.dtype)

    # --- the step -------------------------------------------------------------------------------

    def _parts(self, entries: Sequence[Entry]) -> Iterator[Sequence[Entry]]:
        """Divide into batches of matrices of one dtype and device and with equal options."""
        if self._overrides(("orthogonalize",), MatrixOptimizer):
            yield from super()._parts(entries)
            return
        alike: dict[Any, list[Entry]] = {}
        keys = {}
        if len(self.param_groups) > 1:  # else all options are equal
            keys = {id(group): group_key(group) for group in self.param_groups}
        for entry in entries:
            if entry.param.numel() == 0:
                yield (entry,)
                continue
            whole = self._is_whole(entry, counted=False)
            key = keys.get(id(entry.group)), entry.param.dtype, entry.param.device, whole
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

    def _is_whole(self, entry: Entry, *, counted: bool) -> bool:
        """Whether this step works on whole matrices; ``counted`` if ``step`` counts it already."""
        period: int = entry.group["period"]
        return period == 1 or (self.state[entry.param].get("step", 0) - counted) % period == 0

    def _counts(self, entry: Entry) -> bool:
        group = entry.group
        return super()._counts(entry) or group["period"] > 1 or group["second_moment"] == "namo"

    def _step_part(self, part: Sequence[Entry]) -> None:
        onto = self._target(part)
        if onto is None:
            super()._step_part(part)
            return
        (entry,) = part
        param, group = entry.param, entry.group
        batch = self._fill(entry)
        ((_, rows, columns),) = batch.shapes
        factor = group["radius"] * shape_factor(group["scale"], rows, columns)
        dtype = resolve_dtype(param, group["iteration_dtype"])
        short, long = min(rows, columns), max(rows, columns)
        with matmul_precision(group["fp32_matmul_prec"]):
            spectral_step_(
                batch,
                onto,
                factor=-float(group["lr"]) * factor,
                keep=kept_in(group),
                schedule=group["schedule"],
                steps=group["steps"],
                limit=batch_limit(short, long, dtype, batch_bytes=group["batch_bytes"]),
            )

    def _target(self, part: Sequence[Entry]) -> Tensor | None:
        """The weight as the last product of the iteration can write it; None where it cannot.

        It cannot where a method of a subclass or an option comes between, in another precision
        than the weight's, and for several weights, which do not lie in memory as one batch.
        """
        param, group = part[0].param, part[0].group
        if len(part) > 1 or param.numel() == 0:
            return None
        if not is_plain_step(group) or self._hooked(group):
            return None
        if self._overrides(_ON_THE_WAY, MatrixOptimizer):
            return None
        dtype = resolve_dtype(param, group["iteration_dtype"])
        if param.dtype != dtype or dtype.itemsize < 4 or group["fp32_matmul_prec"] != "highest":
            return None
        return view_as_batch(param, group["layout"])

    def _fill(self, entry: Entry) -> MatrixBatch:
        """Average the gradient, and return what is to be orthogonalized in memory of its own."""
        param, gradient, group = entry.param, entry.gradient, entry.group
        average_([buffer := self._buffer(param)], [gradient], momentum=group["momentum"])
        batch = MatrixBatch(
            [matrix_shape(param.shape, group["layout"])],
            dtype=resolve_dtype(param, group["iteration_dtype"]),
            device=param.device,
        )
        (target,) = batch.stacks(batch.data)
        if group["nesterov"] and target.dtype == buffer.dtype == gradient.dtype:
            # without a copy between
            torch.lerp(gradient, buffer, group["momentum"], out=target.view(param.shape))
        else:
            (ahead,) = averaged(
                [buffer], [gradient], momentum=group["momentum"], nesterov=group["nesterov"]
            )
            batch.fill_([ahead.reshape(target.shape)])
        return batch

    def _directions(self, part: Sequence[Entry], gradients: Sequence[Tensor]) -> list[Tensor]:
        if self._overrides(("orthogonalize",), MatrixOptimizer):
            return super()._directions(part, gradients)
        group = part[0].group
        blocks, params = Blocks.of(group), [entry.param for entry in part]
        averages = self._averages(part, gradients)
        stacks = [blocks.stacks(x) for x in averages]

        def adapt(found: Sequence[Tensor]) -> None:
            start = 0
            for place, entry in enumerate(part):
                own = found[start : start + len(stacks[place])]
                start += len(own)
                self._adapt_(own, stacks[place], gradients[place], entry, blocks)

        flat = [stack for own in stacks for stack in own]
        whole = self._is_whole(part[0], counted=True)
        with matmul_precision(group["fp32_matmul_prec"]):
            found = self._scaled(
                flat, group, adapt=adapt if group["second_moment"] else None, whole=whole
            )
        hooked, updates, start = self._hooked(group), [], 0
        for param, own in zip(params, stacks, strict=True):
            dtype = iteration_dtype(param.dtype)
            update = assemble(found[start : start + len(own)], param, blocks, dtype)
            # a hook may want to view it otherwise
            updates.append(update.contiguous() if hooked else update)
            start += len(own)
        return updates

    def _scaled(
        self,
        averages: Sequence[Tensor],
        group: Mapping[str, Any],
        *,
        adapt: Callable[[Sequence[Tensor]], None] | None = None,
        whole: bool = True,
    ) -> list[Tensor]:
        """Return f · direction of D for stacks ``(count, rows, columns)``, in tensors of their own.

        Args:
            averages: D of each stack.
            group: the options.
            adapt: changes the directions in place before they are scaled.
            whole: whether this step works on whole matrices, see ``period``.
        """
        scale, norm, radius = group["scale"], group["norm"], group["radius"]
        size = group["block_size"] if group["period"] == 1 or not whole else None
        own = self._overrides(("direction", "_find_directions"), MatrixOptimizer)
        if whole and size is None and adapt is None and scale != "nuclear" and not own:
            factors = [
                radius * shape_factor(scale, stack.shape[1], stack.shape[2], norm)
                if stack.numel() > 0
                else 1.0
                for stack in averages
            ]
            return Geometry.of(group).directions(averages, factors)
        if whole or size is not None:
            sign = group["second_moment"] == "adamuon_sign"
            stacks = [stack.sign() for stack in averages] if sign else averages
            flat = [tile for stack in stacks for tile in tiles(stack, size)]
            found = untile(self._find_directions(flat, group), stacks, size)
        else:
            found = [as_long_as_orthogonal(stack) for stack in averages]
        if adapt is not None:
            adapt(found)
        for direction, average in zip(found, averages, strict=True):
            for tile, of in zip(tiles(direction, size), tiles(average, size), strict=True):
                tile.mul_(step_factor(tile, of, scale=scale, norm=norm, radius=radius))
        return found

    def _adapt_(
        self,
        found: Sequence[Tensor],
        averages: Sequence[Tensor],
        gradient: Tensor,
        entry: Entry,
        blocks: Blocks,
    ) -> None:
        """Adapt the directions of a parameter by their second moments."""
        group, param, state = entry.group, entry.param, self.state[entry.param]
        method: SecondMoment = group["second_moment"]
        if _MOMENT not in state:
            shape = moment_shape(method, param.shape, block_shapes(tuple(param.shape), blocks))
            state[_MOMENT] = torch.zeros(
                shape, dtype=moment_dtype(method, param.dtype), device=param.device
            )
        adapt_(
            found,
            state[_MOMENT],
            [] if state[_MOMENT].shape != param.shape else blocks(state[_MOMENT]),
            method=method,
            beta2=group["beta2"],
            eps=group["eps"],
            lengths=[
                full_length(x, norm=group["norm"] if self._has_full_length(group) else None)
                for x in found
            ],
            averages=averages,
            gradients=blocks.stacks(gradient) if method in SCALAR else [],
            correction=bias_correction(
                state["step"],
                momentum=group["momentum"],
                nesterov=group["nesterov"],
                beta2=group["beta2"],
            )
            if method == "namo"
            else 1.0,
        )

    def _has_full_length(self, group: Mapping[str, Any]) -> bool:
        """Whether directions of full rank have the length that their norm gives."""
        uncommon = group["clip"] is not None or group["block_size"] is not None
        own = self._overrides(("direction", "_find_directions"), MatrixOptimizer)
        return not uncommon and group["period"] == 1 and not own

    def _averages(self, part: Sequence[Entry], gradients: Sequence[Tensor]) -> list[Tensor]:
        """Average the gradients of a part; return D of each, perhaps M itself."""
        momentum, nesterov = part[0].group["momentum"], part[0].group["nesterov"]
        buffers = [self._buffer(entry.param) for entry in part]
        average_(buffers, gradients, momentum=momentum)
        return averaged(buffers, gradients, momentum=momentum, nesterov=nesterov)

    def _buffer_dtype(self, param: Tensor) -> torch.dtype:
        # an override of orthogonalize gets D in the dtype of the weights, as the base gives it
        if self._overrides(("orthogonalize",), MatrixOptimizer):
            return super()._buffer_dtype(param)
        return iteration_dtype(param.dtype)

    def _decay(self, part: Sequence[Entry]) -> list[Tensor]:
        for entry in part:
            group, weight = entry.group, entry.weight
            spectral = group["weight_decay_method"] == "spectral" and weight.numel() > 0
            if spectral and group["weight_decay"] != 0.0:
                share = float(group["lr"]) * group["weight_decay"]
                for block in Blocks.of(group)(weight):
                    stack = block.matrices()
                    excess = spectrum_above(stack, cap=group["spectral_cap"])
                    block.write_(stack.sub_(excess, alpha=share))
        return super()._decay(part)

    # --- checks ---------------------------------------------------------------------------------

    def _check_options(self, group: Mapping[str, Any]) -> None:
        super()._check_options(group)
        check_matrix_options(group)
        if group["second_moment"] and self._overrides(("orthogonalize",), MatrixOptimizer):
            raise ValueError(
                f"second_moment={group['second_moment']!r} adapts what direction returns; override "
                "direction instead of orthogonalize"
            )

    def _check_parameter(self, param: Tensor, group: Mapping[str, Any], name: str) -> None:
        super()._check_parameter(param, group, name)
        try:
            shapes = block_shapes(tuple(param.shape), Blocks.of(group))
        except ValueError as error:
            raise ValueError(
                f"{name} cannot be stepped by {type(self).__name__}: {error}"
            ) from None
        vectors = [shape for shape in shapes if 1 in shape[1:] and 0 not in shape]
        if vectors and not group["allow_vectors"]:
            _, rows, columns = vectors[0]
            raise ValueError(
                f"{name} of shape {tuple(param.shape)} is seen as a matrix of {rows} × {columns}, "
                f"which is a vector: give it to another optimizer, such as AdamW, or say "
                "allow_vectors=True, which makes every step of it equally long"
            )

    def _check_gradients(self, entries: Sequence[Entry]) -> None:
        super()._check_gradients(entries)
        for entry in entries:
            method = entry.group["second_moment"]
            moments = self.state[entry.param].get(_MOMENT) if method else None
            if moments is None:
                continue
            if (moments.shape == entry.param.shape) != (method in ENTRYWISE):
                raise RuntimeError(
                    f"second_moment of {entry.name} has become {method!r}, and its state has shape "
                    f"{tuple(moments.shape)} from another; delete it from the state, or make a new "
                    "optimizer"
                )

    def _check_loaded_state(
        self, state: Mapping[str, Any], param: Tensor, group: Mapping[str, Any], name: str
    ) -> None:
        super()._check_loaded_state(state, param, group, name)
        if group["second_moment"] is None or _MOMENT not in state:
            return
        shapes = block_shapes(tuple(param.shape), Blocks.of(group))
        wanted = moment_shape(group["second_moment"], param.shape, shapes)
        if tuple(state[_MOMENT].shape) != wanted:
            raise ValueError(
                f"the loaded {_MOMENT} of {name} has shape {tuple(state[_MOMENT].shape)}, and "
                f"second_moment={group['second_moment']!r} needs {wanted}"
            )


# what stands between the average and the weight, if a subclass replaces it
_ON_THE_WAY = (
    "orthogonalize",
    "direction",
    "_find_directions",
    "_averages",
    "_directions",
    "_widen",
    "_decay",
    "_apply",
    "_narrow",
)
