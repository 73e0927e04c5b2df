"""The polar factor UVᵀ of X = UΣVᵀ: by odd polynomials, or exactly."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, get_args

import torch
from torch import Tensor

from steepest.linalg.exact import polar_eigh, polar_qdwh, polar_svd, range_tolerance
from steepest.linalg.iteration import Factor, Form, choose_form, iterate
from steepest.linalg.minimax import minimax, minimax_error
from steepest.linalg.normalize import iteration_dtype, normalize
from steepest.linalg.schedules import Coefficients, Schedule, coefficients

Method = Literal["auto", "newton_schulz", "gram_newton_schulz", "svd", "eigh", "qdwh"]

# with a tolerance: the condition number that polynomials are given, and the steps they may take
# before an eigendecomposition is cheaper
_POLYNOMIAL_LOWER = 1e-2
_POLYNOMIAL_STEPS = 5


def polar(
    x: Tensor,
    *,
    method: Method = "auto",
    schedule: Schedule = "polar_express",
    steps: int = 5,
    tolerance: float | None = None,
    dtype: torch.dtype | None = None,
) -> Tensor:
    r"""Return the polar factor of each matrix, approximate or exact.

    For X = UΣVᵀ it is U_r V_rᵀ over the numerical range: the r singular values above
    max(m, n)·ε times the largest, with ε of the dtype of ``x`` (of float32 for 16-bit input).

    Args:
        x: matrices of shape ``(..., m, n)``, any real floating dtype; not changed.
        method: "newton_schulz" and "gram_newton_schulz" apply the polynomials of ``schedule``, by
            products with X or with XXᵀ; "svd", "eigh" (of XXᵀ) and "qdwh" (full rank only) are
            exact. "auto" is the faster of the two forms for the shape or, with a ``tolerance``,
            whatever reaches it first.
        schedule: coefficient table, see ``SCHEDULES``; not for the exact methods.
        steps: number of polynomials; not for the exact methods.
        tolerance: largest relative error ‖Y − U_r V_rᵀ‖_F/√r of the result Y, for "auto". Minimax
            polynomials are tried where they can reach it, and their residual ‖YYᵀ − I‖_F/√m, which
            is no smaller than the error, is checked; else, or where the check fails, an
            eigendecomposition of XXᵀ with an error estimate, then the same in float64, then QDWH
            or a singular value decomposition.
        dtype: dtype of the computation; default float32 for 16-bit input, else that of ``x``.

    Returns:
        A new tensor of the shape and dtype of ``x``. The result does not depend on the scale of
        ``x``; a zero matrix gives exact zeros; a matrix with a non-finite entry gives a non-finite
        matrix, without touching others of the batch. No gradient flows through it.

    Raises:
        ValueError: if ``x`` has fewer than two dimensions or is not real and floating, for an
            unknown method or schedule, or a ``tolerance`` that is not positive or is given with
            another method than "auto".

    Example:
        >>> x = torch.tensor([[3.0, 0.0, 0.0], [0.0, 1e-3, 0.0]])
        >>> polar(x, tolerance=1e-4).abs().round(decimals=3)
        tensor([[1., 0., 0.],
                [0., 1., 0.]])

    Source: Higham, Functions of Matrices (2008), ch. 8; tables as ``SCHEDULES`` says.
    """
    check_matrices(x)
    check_method(method, tolerance)
    if tolerance is not None:
        return _on_normalized(x, lambda y: _within(y, tolerance, x.dtype), dtype=dtype)
    if method in ("auto", "newton_schulz", "gram_newton_schulz"):
        table = coefficients(schedule, steps)
        form: Form | None = None
        if method != "auto":
            form = "gram" if method == "gram_newton_schulz" else "plain"
        return _polynomials(x, table, form=form, dtype=dtype)
    exact: dict[str, Callable[[Tensor, float], Tensor]] = {
        "svd": lambda y, cut: polar_svd(y, tolerance=cut),
        "eigh": lambda y, cut: polar_eigh(y, tolerance=cut)[0],
        "qdwh": lambda y, cut: polar_qdwh(y, lower=cut),
    }
    return _on_normalized(x, lambda y: exact[method](y, _cut(y, x.dtype)), dtype=dtype)


def newton_schulz(
    x: Tensor,
    *,
    schedule: Schedule = "polar_express",
    steps: int = 5,
    dtype: torch.dtype | None = None,
) -> Tensor:
    r"""Approximate the polar factor of each matrix by ``steps`` odd polynomials.

    With X₀ = X / ‖X‖_F, each step is

    $$
    X_{i+1} = a X_i + (b\,X_i X_i^T + c\,(X_i X_i^T)^2) X_i
    $$

    on the orientation whose XXᵀ is the smaller, so that X keeps its singular vectors and each
    singular value s becomes a s + b s³ + c s⁵. The result does not depend on the scale of ``x``.

    Args:
        x: matrices of shape ``(..., m, n)``, any real floating dtype; not changed.
        schedule: coefficient table, see ``SCHEDULES``.
        steps: number of polynomials, at least 1.
        dtype: dtype of the iteration; default float32 for 16-bit input, else that of ``x``.

    Returns:
        A new tensor of the shape and dtype of ``x``. A zero matrix gives exact zeros; a matrix
        with a non-finite entry gives a non-finite matrix, without touching others of the batch.

    Raises:
        ValueError: if ``x`` has fewer than two dimensions or is not real and floating.

    Example:
        >>> x = torch.diag(torch.tensor([3.0, 1.0]))
        >>> newton_schulz(x, schedule="polar_express", steps=8).round(decimals=3)
        tensor([[1., 0.],
                [0., 1.]])

    Source: Björck & Bowie (1971); Jordan et al., Muon (2024); tables as ``SCHEDULES`` says.
    """
    check_matrices(x)
    return _polynomials(x, coefficients(schedule, steps), form="plain", dtype=dtype)


def gram_newton_schulz(
    x: Tensor,
    *,
    schedule: Schedule = "polar_express",
    steps: int = 5,
    dtype: torch.dtype | None = None,
) -> Tensor:
    r"""Compute ``newton_schulz`` by way of the Gram matrix, for matrices far from square.

    The polynomials are accumulated in Q on the short side, $X_n = Q X_0$, and all but two products
    are of short side by short side. In float32 the result differs from ``newton_schulz`` by about
    1e-5 for singular values above 1e-2 of the largest, and by up to 1e-3 for smaller ones.

    Args:
        x: matrices of shape ``(..., m, n)``, any real floating dtype; not changed.
        schedule: coefficient table, see ``SCHEDULES``.
        steps: number of polynomials, at least 1.
        dtype: dtype of the iteration; default float32 for 16-bit input, else that of ``x``.

    Example:
        >>> x = torch.ones(1, 4)
        >>> gram_newton_schulz(x, steps=8)
        tensor([[0.5000, 0.5000, 0.5000, 0.5000]])

    Source: the Gram form is in Dao et al., Gram Newton-Schulz (2026),
    https://tridao.me/blog/2026/gram-newton-schulz/.
    """
    check_matrices(x)
    return _polynomials(x, coefficients(schedule, steps), form="gram", dtype=dtype)


def check_matrices(x: Tensor) -> None:
    """Raise ``ValueError`` unless ``x`` is a batch of real floating matrices ``(..., m, n)``."""
    if x.ndim < 2:
        raise ValueError(f"x must have at least two dimensions (..., m, n), got {tuple(x.shape)}")
    if not x.is_floating_point():
        raise ValueError(f"x must be of a real floating dtype, got {x.dtype}")


def newton_schulz_(
    x: Tensor,
    *,
    schedule: Schedule,
    steps: int,
    factor: Factor = 1.0,
    onto: Tensor | None = None,
    keep: float = 1.0,
) -> Tensor:
    """Compute ``polar`` by polynomials in the memory of ``x``, which is overwritten.

    Args:
        x: wide matrices ``(b, m, n)``, m ≤ n, contiguous or the transpose of what is, not empty,
            of the dtype to iterate in.
        schedule: coefficient table, see ``SCHEDULES``.
        steps: number of polynomials.
        factor: of the result, a number or ``(b, 1, 1)``.
        onto: where given, ``(b, m, n)``, changed in place to ``keep·onto + result``.
        keep: see ``onto``.

    Returns:
        ``(b, m, n)``: ``onto``, or the memory of ``x``, or new memory.
    """
    table = coefficients(schedule, steps)
    return iterate(x, table, form=_form(x), factor=factor, onto=onto, keep=keep)


def _form(x: Tensor) -> Form:
    return choose_form(x.shape[-2], x.shape[-1], x.dtype)


def _polynomials(
    x: Tensor, table: tuple[Coefficients, ...], *, form: Form | None, dtype: torch.dtype | None
) -> Tensor:
    x = x.detach()
    if x.numel() == 0:
        return x.clone()
    target = dtype or iteration_dtype(x.dtype)
    tall = x.shape[-2] > x.shape[-1]
    y = x.reshape(-1, *x.shape[-2:])
    y = y.mT if tall else y
    if target.itemsize < 4:  # narrowing first would overflow
        y = normalize(y, dtype=target).contiguous()
    else:
        y = y.to(target, memory_format=torch.contiguous_format, copy=True)
        if x.dtype.itemsize > target.itemsize and not bool(y.isfinite().all()):
            y = normalize(x.reshape(-1, *x.shape[-2:]), dtype=target)
            y = (y.mT if tall else y).contiguous()
    y = iterate(y, table, form=form or _form(y))
    return (y.mT if tall else y).reshape(x.shape).to(x.dtype)


def _on_normalized(
    x: Tensor,
    function: Callable[[Tensor], Tensor],
    *,
    dtype: torch.dtype | None,
) -> Tensor:
    """Apply a function of normalised wide matrices ``(b, m, n)`` to matrices of any kind.

    Matrices that are not finite are kept from the function, which may refuse them, and come out
    as NaN.
    """
    x = x.detach()
    if x.numel() == 0:
        return x.clone()
    y = normalize(x, dtype=dtype or iteration_dtype(x.dtype), exact=True)
    y = y.reshape(-1, *x.shape[-2:])
    tall = x.shape[-2] > x.shape[-1]
    if tall:
        y = y.mT.contiguous()
    finite = y.isfinite().all(dim=-1).all(dim=-1)[:, None, None]
    result = torch.where(finite, function(torch.where(finite, y, 0.0)), torch.nan)
    return (result.mT if tall else result).reshape(x.shape).to(x.dtype)


def _cut(y: Tensor, given: torch.dtype) -> float:
    """Relative singular value up to which a direction counts as null space."""
    return range_tolerance(y.shape[-2], y.shape[-1], iteration_dtype(given))


def _within(y: Tensor, tolerance: float, given: torch.dtype) -> Tensor:
    """Return polar factors of error at most ``tolerance``, by the first method that reaches it."""
    cut = _cut(y, given)
    steps = next(
        (
            steps
            for steps in range(1, _POLYNOMIAL_STEPS + 1)
            if 2.2 * minimax_error(l=_POLYNOMIAL_LOWER, steps=steps) < tolerance
        ),
        None,
    )
    if tolerance < 2e3 * torch.finfo(y.dtype).eps:  # the iteration's own rounding
        steps = None
    result, todo = torch.zeros_like(y), torch.ones(y.shape[0], dtype=torch.bool, device=y.device)
    todo &= y.any(dim=-1).any(dim=-1)  # zeros are done
    if steps is not None and bool(todo.any()):
        table = minimax(l=_POLYNOMIAL_LOWER, steps=steps)
        tried = iterate(y[todo], table, form=_form(y), normalized=True)
        result, todo = _accept(result, todo, tried, _residual(tried), tolerance)
    for dtype in dict.fromkeys((y.dtype, torch.float64)):
        if bool(todo.any()):
            tried, error = polar_eigh(y[todo].to(dtype), tolerance=cut)
            result, todo = _accept(result, todo, tried.to(y.dtype), error, tolerance)
    if bool(todo.any()):
        result[todo] = _robust(y[todo].double(), cut).to(y.dtype)
    return result


def _accept(
    result: Tensor, todo: Tensor, tried: Tensor, error: Tensor, tolerance: float
) -> tuple[Tensor, Tensor]:
    """Take over what is within the tolerance; return the result and what is still to do."""
    good = error <= tolerance
    places = todo.nonzero().flatten()
    result[places[good]] = tried[good]
    left = todo.clone()
    left[places[good]] = False
    return result, left


def _residual(y: Tensor) -> Tensor:
    """‖YYᵀ − I‖_F/√m, at least the polar error for full rank, since |s − 1| ≤ |s² − 1|."""
    gram = y @ y.mT
    gram.diagonal(dim1=-2, dim2=-1).sub_(1.0)
    residual: Tensor = torch.linalg.matrix_norm(gram) / y.shape[-2] ** 0.5
    return residual


def _robust(y: Tensor, cut: float) -> Tensor:
    """QDWH, and where its result is not orthogonal, so that the rank is not full, the SVD."""
    result = polar_qdwh(y, lower=cut)
    # QDWH completes a null space to an orthogonal matrix; its H = YXᵀ tells the singular values
    spectrum = torch.linalg.eigvalsh(result @ y.mT)
    full = (spectrum[..., 0] > cut * spectrum[..., -1]) & (_residual(result) < 1e-10)
    if not bool(full.all()):
        result[~full] = polar_svd(y[~full], tolerance=cut)
    return result


def check_method(method: str, tolerance: float | None) -> None:
    """Raise ``ValueError`` for an unknown method, or a tolerance that it cannot have."""
    if method not in get_args(Method):
        raise ValueError(f"method must be one of {', '.join(get_args(Method))}, got {method!r}")
    if tolerance is None:
        return
    if not tolerance > 0.0:
        raise ValueError(f"tolerance must be > 0, got {tolerance!r}")
    if method != "auto":
        raise ValueError(f"tolerance chooses the method: method must be 'auto', got {method!r}")
