"""Whether gradients are finite, in one fast pass."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor


def all_finite(gradients: Sequence[Tensor]) -> bool:
    """Return whether all entries of all gradients are finite.

    On an accelerator this waits for the gradients, once for each device.

    Args:
        gradients: of any shapes, dtypes and devices; empty and sparse ones among them.
    """
    dense = [g.coalesce().values() if g.is_sparse else g for g in gradients]
    dense = [g for g in dense if g.numel() > 0]
    if not dense:
        return True
    # a sum of squares may overflow where no entry does
    lengths = torch._foreach_norm(dense, 2)
    if all(bool(torch.stack(each).isfinite().all()) for each in _by_device(lengths)):
        return True
    return all(bool(g.isfinite().all()) for g in dense)


def _by_device(tensors: Iterable[Tensor]) -> Iterable[list[Tensor]]:
    found: dict[tuple[torch.device, torch.dtype], list[Tensor]] = {}
    for tensor in tensors:
        found.setdefault((tensor.device, tensor.dtype), []).append(tensor)
    return found.values()
