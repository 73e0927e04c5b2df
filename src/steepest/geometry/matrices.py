"""How a parameter is seen as a batch of matrices."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal, get_args

import torch
from torch import Tensor

Layout = Literal["matrix", "convolution", "stack"]


def matrix_shape(shape: Sequence[int], layout: Layout) -> tuple[int, int, int]:
    """Return (batch, rows, columns) of the matrices that a parameter of ``shape`` holds.

    ==============  ==========================================  =======================
    ``layout``      parameter                                   matrices
    ==============  ==========================================  =======================
    matrix          (out, in)                                   1 of out × in
    convolution     (out, in, kernel…), 1 to 3 kernel axes      1 of out × (in·kernel)
    stack           (…, out, in), at least one leading axis     one each, out × in
    ==============  ==========================================  =======================

    Args:
        shape: shape of the parameter.
        layout: name of the view.

    Raises:
        ValueError: for an unknown layout, or a shape that the layout does not fit.

    Example:
        >>> matrix_shape((64, 16, 3, 3), "convolution")
        (1, 64, 144)
    """
    axes = len(shape)
    if layout == "matrix" and axes == 2:
        return 1, shape[0], shape[1]
    if layout == "convolution" and 3 <= axes <= 5:
        return 1, shape[0], math.prod(shape[1:])
    if layout == "stack" and axes >= 3:
        return math.prod(shape[:-2]), shape[-2], shape[-1]
    check_layout(layout)
    needs = {"matrix": "2 axes", "convolution": "3 to 5 axes", "stack": "at least 3 axes"}
    raise ValueError(
        f"layout {layout!r} needs a parameter with {needs[layout]}, got shape {tuple(shape)}"
    )


def check_layout(layout: str) -> None:
    """Raise ``ValueError`` for an unknown layout."""
    if layout not in get_args(Layout):
        raise ValueError(f"layout must be one of {', '.join(get_args(Layout))}, got {layout!r}")


def view_as_batch(x: Tensor, layout: Layout) -> Tensor | None:
    """Return ``x`` as wide matrices ``(batch, short, long)`` in its own memory.

    None where that needs a copy.
    """
    if x.ndim > 2 and not x.is_contiguous():
        return None
    matrices = x.reshape(matrix_shape(x.shape, layout))
    return matrices.mT if matrices.shape[-2] > matrices.shape[-1] else matrices


class MatrixBatch:
    """Stacks of matrices, all with the same short side, in one memory.

    Tall and wide matrices share a batch: each is seen with its short side first. Where the long
    sides differ, zeros fill the rest.

    Args:
        shapes: (count, rows, columns) of each stack, ``short × long`` or ``long × short``.
        dtype: of the memory.
        device: of the memory.

    Attributes:
        data: ``(b, short, long)``, uninitialised at first but for the zeros beside shorter ones.
    """

    def __init__(
        self,
        shapes: Sequence[tuple[int, int, int]],
        *,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self.shapes = shapes
        longs = {max(rows, columns) for _, rows, columns in shapes}
        self._padded = len(longs) > 1
        if len(shapes) == 1:  # as it lies in memory, tall or wide
            count, rows, columns = shapes[0]
            memory = torch.empty(count, rows, columns, dtype=dtype, device=device)
            self.data = memory.mT if rows > columns else memory
            return
        count = sum(count for count, _, _ in shapes)
        new = torch.zeros if self._padded else torch.empty
        self.data = new((count, min(shapes[0][1:]), max(longs)), dtype=dtype, device=device)

    def fill_(self, stacks: Sequence[Tensor]) -> None:
        """Write a tensor of each stack's shape into the memory."""
        one_dtype = all(stack.dtype == self.data.dtype for stack in stacks)
        if len(stacks) > 1 and one_dtype and not self._padded:
            torch.cat([x.mT if x.shape[1] > x.shape[2] else x for x in stacks], out=self.data)
            return
        for slot, stack in zip(self.stacks(self.data), stacks, strict=True):
            slot.copy_(stack)

    def stacks(self, data: Tensor) -> list[Tensor]:
        """Return a view of the memory for each stack, ``(count, rows, columns)``.

        Args:
            data: ``self.data``, or other memory of the same shape.
        """
        pieces = torch.split(data, [count for count, _, _ in self.shapes])
        longest = data.shape[-1]
        result = []
        for piece, (_, rows, columns) in zip(pieces, self.shapes, strict=True):
            own = piece if max(rows, columns) == longest else piece[..., : max(rows, columns)]
            result.append(own.mT if rows > columns else own)
        return result
