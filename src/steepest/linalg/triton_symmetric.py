"""A Triton kernel for products that are known to be symmetric: half the tiles, the rest mirrored.

Triton is optional; ``AVAILABLE`` says whether it could be imported.
"""

from __future__ import annotations

import torch
from torch import Tensor

try:
    import triton
    import triton.language as tl
except ImportError:
    AVAILABLE = False
else:
    AVAILABLE = True

    @triton.jit
    def _kernel(
        left, right, add, out,
        size, depth, beta, alpha,
        left_batch, left_row, left_column,
        right_batch, right_row, right_column,
        add_batch, add_row, add_column,
        out_batch, out_row, out_column,
        HAS_ADD: tl.constexpr, EXACT: tl.constexpr, TILE: tl.constexpr, DEPTH: tl.constexpr,
    ):  # fmt: skip
        """Write one tile of beta·add + alpha·left @ right, and its mirror image."""
        row_tile, column_tile = tl.program_id(0), tl.program_id(1)
        if row_tile > column_tile:  # the mirror image of another program's tile
            return
        batch = tl.program_id(2).to(tl.int64)
        rows = row_tile * TILE + tl.arange(0, TILE)
        columns = column_tile * TILE + tl.arange(0, TILE)
        steps = tl.arange(0, DEPTH)
        left_tile = left + batch * left_batch + rows[:, None] * left_row
        right_tile = right + batch * right_batch + columns[None, :] * right_column
        total = tl.zeros((TILE, TILE), dtype=tl.float32)
        for start in range(0, depth, DEPTH):
            inner = start + steps
            a = tl.load(
                left_tile + inner[None, :] * left_column,
                mask=(rows[:, None] < size) & (inner[None, :] < depth),
                other=0.0,
            )
            b = tl.load(
                right_tile + inner[:, None] * right_row,
                mask=(inner[:, None] < depth) & (columns[None, :] < size),
                other=0.0,
            )
            if EXACT:
                total = tl.dot(a, b, total, input_precision="ieee")
            else:
                total = tl.dot(a, b, total)
        total = alpha * total
        inside = (rows[:, None] < size) & (columns[None, :] < size)
        if HAS_ADD:
            places = (
                add + batch * add_batch + rows[:, None] * add_row + columns[None, :] * add_column
            )
            total += beta * tl.load(places, mask=inside, other=0.0).to(tl.float32)
        value = total.to(out.dtype.element_ty)
        base = out + batch * out_batch
        tl.store(base + rows[:, None] * out_row + columns[None, :] * out_column, value, mask=inside)
        mirrored = base + columns[:, None] * out_row + rows[None, :] * out_column
        tl.store(mirrored, tl.trans(value), mask=(columns[:, None] < size) & (rows[None, :] < size))


def symmetric_product_triton(
    left: Tensor,
    right: Tensor,
    *,
    out: Tensor,
    add: Tensor | None = None,
    beta: float = 0.0,
    alpha: float = 1.0,
    tile: int = 64,
    depth: int = 32,
) -> Tensor:
    """Write ``beta·add + alpha·left @ right``, known to be symmetric, into ``out``.

    Products are accumulated in float32; float32 input is multiplied in full precision if
    ``torch.get_float32_matmul_precision()`` is "highest", else in TF32.

    Args:
        left: ``(n, k)`` or ``(b, n, k)``.
        right: ``(k, n)`` or ``(b, k, n)``.
        out: ``(n, n)`` or ``(b, n, n)``, overwritten and returned; may not share memory with the
            factors.
        add: symmetric, of the shape of ``out``.
        beta: factor of ``add``.
        alpha: factor of the product.
        tile: side of the tiles of ``out``.
        depth: length of the pieces of the inner dimension.

    Raises:
        RuntimeError: if Triton is not installed.
    """
    if not AVAILABLE:
        raise RuntimeError("the Triton kernel needs the package triton")
    left3, right3, out3 = (x if x.ndim == 3 else x[None] for x in (left, right, out))
    add3 = out3 if add is None else (add if add.ndim == 3 else add[None])
    batch, size, inner = left3.shape
    tiles = triton.cdiv(size, tile)
    _kernel[(tiles, tiles, batch)](
        left3, right3, add3, out3,
        size, inner, beta, alpha,
        *left3.stride(), *right3.stride(), *add3.stride(), *out3.stride(),
        HAS_ADD=add is not None,
        EXACT=left.dtype == torch.float32 and torch.get_float32_matmul_precision() == "highest",
        TILE=tile, DEPTH=depth,
    )  # fmt: skip
    return out
