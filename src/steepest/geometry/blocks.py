"""How a fused, grouped or transposed parameter is divided into blocks that are matrices."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, NamedTuple, get_args

import torch
from torch import Tensor

from steepest.geometry.matrices import Layout, check_layout, matrix_shape

BlockAxis = Literal["rows", "columns"]


class Block(NamedTuple):
    """A view of a tensor of the parameter's shape, which counts as a batch of matrices.

    Attributes:
        view: ``(batch…, rows…, columns…)``.
        batch: number of its first axes that count matrices.
        rows: number of the axes after them that together are the rows.
    """

    view: Tensor
    batch: int
    rows: int

    @property
    def shape(self) -> tuple[int, int, int]:
        """(batch, rows, columns)."""
        sizes, end = self.view.shape, self.batch + self.rows
        counts = sizes[: self.batch], sizes[self.batch : end], sizes[end:]
        batch, rows, columns = map(math.prod, counts)
        return batch, rows, columns

    def matrices(self) -> Tensor:
        """``(batch, rows, columns)``, a view where the strides allow."""
        return self.view.reshape(self.shape)

    def write_(self, matrices: Tensor) -> None:
        """Write ``(batch, rows, columns)`` into the view."""
        if matrices.data_ptr() != self.view.data_ptr():  # which it may be a view of
            self.view.copy_(matrices.reshape(self.view.shape))


@dataclass(frozen=True)
class Blocks:
    r"""How a parameter is divided: plain data, the options of its group.

    In this order: the axes are named by ``layout``, with outputs and inputs exchanged if
    ``transposed``; a grouped convolution becomes a matrix for each of its ``groups``; ``split``
    divides the ``block_axis`` into blocks, and ``heads`` each block into equal ones.

    Attributes:
        layout: "matrix", "convolution" or "stack".
        transposed: whether inputs come before outputs in storage.
        groups: number of groups of a convolution.
        split: sizes of unequal blocks along the ``block_axis``; empty for one block.
        interleaved: how often the pattern of ``split`` repeats along the axis; a block is what
            all its repetitions hold.
        heads: number of equal matrices in each block, or one number for all.
        block_axis: "rows", the outputs, or "columns", the inputs.
    """

    layout: Layout = "matrix"
    transposed: bool = False
    groups: int = 1
    split: Sequence[int] = ()
    interleaved: int = 1
    heads: Sequence[int] = (1,)
    block_axis: BlockAxis = "rows"

    @classmethod
    def of(cls, group: Mapping[str, Any]) -> Blocks:
        """Return what the options of a parameter group say; not checked."""
        split, heads = group["split"], group["heads"]
        return cls(
            layout=group["layout"],
            transposed=group["transposed"],
            groups=group["groups"],
            split=() if split is None else split,
            interleaved=group["interleaved"],
            heads=(heads,) if isinstance(heads, int) else heads,
            block_axis=group["block_axis"],
        )

    @cached_property
    def plain(self) -> bool:
        """Whether the parameter is just its ``layout``."""
        return self == Blocks(layout=self.layout)

    def stacks(self, x: Tensor) -> list[Tensor]:
        """Return the matrices of each block, ``(batch, rows, columns)``, views where possible."""
        if self.plain:
            return [x.reshape(matrix_shape(x.shape, self.layout))]
        return [block.matrices() for block in self(x)]

    def check(self) -> None:
        """Raise ``ValueError`` for an option out of range, or two that do not go together."""
        check_layout(self.layout)
        if self.split != ():
            _check_sizes("split", self.split)
        _check_sizes("heads", self.heads)
        if self.block_axis not in get_args(BlockAxis):
            raise ValueError(f"block_axis must be 'rows' or 'columns', got {self.block_axis!r}")
        if not isinstance(self.transposed, bool):
            raise ValueError(f"transposed must be True or False, got {self.transposed!r}")
        _check_sizes("groups", [self.groups])
        _check_sizes("interleaved", [self.interleaved])
        if self.groups > 1 and self.layout != "convolution":
            raise ValueError(
                f"groups={self.groups} needs layout='convolution', got {self.layout!r}; "
                "equal blocks of another layout are heads"
            )
        if self.interleaved > 1 and not self.split:
            raise ValueError(f"interleaved={self.interleaved} needs a split that it repeats")
        if len(self.heads) not in {1, max(1, len(self.split))}:
            raise ValueError(
                f"heads must be one number or one for each of {len(self.split)} blocks of split, "
                f"got {tuple(self.heads)}"
            )
        if self.interleaved > 1 and max(self.heads) > 1:
            raise ValueError(
                f"heads={tuple(self.heads)} cannot be told apart with "
                f"interleaved={self.interleaved}; use one of them"
            )

    def __call__(self, x: Tensor) -> list[Block]:
        """Return the blocks of a tensor of the parameter's shape, all of them views of it."""
        matrix_shape(x.shape, self.layout)  # refuses another number of axes
        lead = x.ndim - 2 if self.layout == "stack" else 0
        if self.transposed:
            x = x.transpose(lead, lead + 1)
        if self.groups > 1:  # stored (out, in/g) with g groups of outputs, or (in, out/g)
            axis = lead + 1 if self.transposed else lead
            x = _unflatten(x, axis, self.groups, f"groups={self.groups}").movedim(axis, 0)
            lead += 1
        axis = lead if self.block_axis == "rows" else lead + 1
        result = [Block(x, lead, 1)]
        if self.split:
            result = self._split(x, axis, lead)
        heads = self.heads if len(self.heads) == len(result) else [self.heads[0]] * len(result)
        return [
            block
            if count == 1
            else Block(
                _unflatten(block.view, axis, count, f"heads={count}").movedim(axis, 0),
                lead + 1,
                block.rows,
            )
            for block, count in zip(result, heads, strict=True)
        ]

    def _split(self, x: Tensor, axis: int, lead: int) -> list[Block]:
        length, wanted = x.shape[axis], sum(self.split) * self.interleaved
        if length != wanted:
            times = f", {self.interleaved} times" if self.interleaved > 1 else ""
            raise ValueError(
                f"split={tuple(self.split)}{times} has {wanted} {self.block_axis}, "
                f"the parameter {length}"
            )
        if self.interleaved == 1:
            return [Block(part, lead, 1) for part in torch.split(x, list(self.split), axis)]
        x = torch.unflatten(x, axis, (self.interleaved, -1))
        rows = 2 if self.block_axis == "rows" else 1
        return [Block(part, lead, rows) for part in torch.split(x, list(self.split), axis + 1)]


def block_shapes(shape: tuple[int, ...], blocks: Blocks) -> tuple[tuple[int, int, int], ...]:
    """Return (batch, rows, columns) of each block of a parameter of ``shape``.

    Raises:
        ValueError: where the shape cannot be divided so, or a block is no matrix.

    Example:
        >>> block_shapes((24, 16), Blocks(split=(16, 4, 4), heads=(4, 1, 1)))
        ((4, 4, 16), (1, 4, 16), (1, 4, 16))
    """
    shapes = tuple(block.shape for block in blocks(torch.empty(shape, device="meta")))
    if blocks.groups > 1 and min(shapes[0][1:]) == 1:
        raise ValueError(
            f"a kernel of shape {tuple(shape)} with groups={blocks.groups} is depthwise and has no "
            "matrices; give it to another optimizer"
        )
    return shapes


def tiles(stack: Tensor, size: int | None) -> list[Tensor]:
    """Return views of square tiles of the matrices, the last ones cut off by the edges.

    Args:
        stack: ``(count, rows, columns)``.
        size: of a tile's sides; None for the whole.

    Example:
        >>> [tuple(tile.shape) for tile in tiles(torch.zeros(1, 4, 3), 2)]
        [(1, 2, 2), (1, 2, 1), (1, 2, 2), (1, 2, 1)]
    """
    if size is None or stack.numel() == 0:
        return [stack]
    strips = torch.split(stack, size, 1)
    return [tile for strip in strips for tile in torch.split(strip, size, 2)]


def untile(found: Sequence[Tensor], stacks: Sequence[Tensor], size: int | None) -> list[Tensor]:
    """Put tiles back together; without a size the stacks are whole and stay as they are.

    Args:
        found: a tensor in place of each tile of each stack, in the order of ``tiles``.
        stacks: ``(count, rows, columns)`` each.
        size: as for ``tiles``.
    """
    if size is None:
        return list(found)
    result, start = [], 0
    for stack in stacks:
        whole = torch.empty(stack.shape, dtype=found[start].dtype, device=stack.device)
        for place in tiles(whole, size):
            place.copy_(found[start])
            start += 1
        result.append(whole)
    return result


def assemble(stacks: Sequence[Tensor], like: Tensor, blocks: Blocks, dtype: torch.dtype) -> Tensor:
    """Return a tensor of the parameter's shape from its stacks, perhaps in their memory.

    Args:
        stacks: ``(count, rows, columns)``, one for each block.
        like: the parameter.
        blocks: how it is divided.
        dtype: of the result.
    """
    if blocks.plain:
        whole = stacks[0].reshape(like.shape)
        return whole if whole.dtype == dtype else whole.to(dtype)
    result = torch.empty_like(like, dtype=dtype)
    for block, stack in zip(blocks(result), stacks, strict=True):
        block.write_(stack)
    return result


def _unflatten(x: Tensor, axis: int, count: int, what: str) -> Tensor:
    if x.shape[axis] % count != 0:
        raise ValueError(f"{what} does not divide an axis of {x.shape[axis]}")
    return torch.unflatten(x, axis, (count, x.shape[axis] // count))


def _check_sizes(name: str, values: object) -> None:
    if isinstance(values, Sequence) and not isinstance(values, str):
        sizes = tuple(values)
        if sizes and all(type(size) is int and size >= 1 for size in sizes):
            return
    raise ValueError(f"{name} must hold integers >= 1, got {values!r}")
