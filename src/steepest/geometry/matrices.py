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


def as_matrices(x: Tensor, layout: Layout) -> Tensor:
    """Return ``x`` as ``(batch, rows, columns)``, a view where its strides allow.

    The inverse is ``result.reshape(x.shape)``.
    """
    return x.reshape(matrix_shape(x.shape, layout))


def view_as_batch(x: Tensor, layout: Layout) -> Tensor | None:
    """Return ``x`` as wide matrices ``(batch, short, long)`` in its own memory.

    None where that needs a copy.
    """
    if x.ndim > 2 and not x.is_contiguous():
        return None
    matrices = as_matrices(x, layout)
    return matrices.mT if matrices.shape[-2] > matrices.shape[-1] else matrices


class MatrixBatch:
    """Matrices of several parameters, all with the same short side, in one memory.

    Tall and wide matrices share a batch: each is seen with its short side first. Where the long
    sides differ, zeros fill the rest.

    Args:
        shapes: shape of each parameter.
        layout: how they are seen as matrices, ``short × long`` or ``long × short``.
        dtype: of the memory.
        device: of the memory.

    Attributes:
        data: ``(b, short, long)``, uninitialised at first but for the zeros beside shorter ones.
    """

    def __init__(
        self,
        shapes: Sequence[Sequence[int]],
        *,
        layout: Layout,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self._shapes = shapes
        self.matrices = [matrix_shape(shape, layout) for shape in shapes]
        plain = all(len(shape) == 2 for shape in shapes)  # one matrix each, as it stands
        self._only = plain and len(shapes) == 1
        if self._only:  # as the parameter lies in memory, tall or wide
            rows, columns = shapes[0]
            self.data = torch.empty(1, rows, columns, dtype=dtype, device=device)
            self.data = self.data.mT if rows > columns else self.data
            return
        longs = {max(rows, columns) for _, rows, columns in self.matrices}
        self._stacked = plain and len(longs) == 1
        count = sum(batch for batch, _, _ in self.matrices)
        new = torch.empty if len(longs) == 1 else torch.zeros
        short = min(self.matrices[0][1:])
        self.data = new((count, short, max(longs)), dtype=dtype, device=device)

    def fill_(self, tensors: Sequence[Tensor]) -> None:
        """Write a tensor of each parameter's shape into the memory."""
        single = self.single()
        if single is not None:
            single.copy_(tensors[0])
            return
        if self._stacked and tensors[0].dtype == self.data.dtype:
            oriented = [x.mT if x.shape[0] > x.shape[1] else x for x in tensors]
            torch.stack(oriented, out=self.data)
            return
        for slot, tensor in zip(self.slots(self.data), tensors, strict=True):
            slot.copy_(tensor.reshape(slot.shape))

    def single(self) -> Tensor | None:
        """The memory in the shape of the parameter, where it is one plain matrix; else None."""
        if not self._only:
            return None
        rows, columns = self._shapes[0]
        matrix: Tensor = self.data[0]
        return matrix.mT if rows > columns else matrix

    def slots(self, data: Tensor) -> list[Tensor]:
        """Return a view of the memory for each parameter, ``(batch, rows, columns)``.

        Args:
            data: ``self.data``, or other memory of the same shape.
        """
        pieces = torch.split(data, [each[0] for each in self.matrices])
        longest = data.shape[-1]
        result = []
        for piece, (_, rows, columns) in zip(pieces, self.matrices, strict=True):
            own = piece if max(rows, columns) == longest else piece[..., : max(rows, columns)]
            result.append(own.mT if rows > columns else own)
        return result

    def parameters(self, data: Tensor) -> list[Tensor]:
        """Return the contents of ``data`` in the shape of each parameter."""
        if self._only or self._stacked:
            return [
                x.mT if rows > columns else x
                for x, (_, rows, columns) in zip(data.unbind(), self.matrices, strict=True)
            ]
        slots = self.slots(data)
        return [slot.reshape(shape) for slot, shape in zip(slots, self._shapes, strict=True)]


def sides(shape: Sequence[int], layout: Layout) -> tuple[int, int]:
    """Return the short and the long side of the matrices of a parameter."""
    _, rows, columns = matrix_shape(shape, layout)
    return min(rows, columns), max(rows, columns)
