"""Which parameters of a model are hidden matrices."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)


def hidden_matrix_groups(
    model: nn.Module, *, head: nn.Module | None
) -> tuple[list[dict[str, Any]], list[Tensor]]:
    """Divide the parameters into groups for a matrix optimizer and the rest.

    Matrices are the weights of ``nn.Linear`` and of convolutions that mix channels, told by the
    type of their module. The rest are embeddings, gains, biases, depthwise convolutions, the head,
    and a weight that a matrix layer shares with one of these.

    Args:
        model: the whole model.
        head: the output layer, stepped with the rest; None where there is none.

    Returns:
        Groups with a ``layout``, of matrices and of convolutions where there are any, and the
        remaining parameters; together each parameter that requires a gradient, once.

    Raises:
        ValueError: if ``head`` is not a module of the model.

    Example:
        >>> model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2))
        >>> groups, rest = hidden_matrix_groups(model, head=model[2])
        >>> [tuple(p.shape) for g in groups for p in g["params"]], [tuple(p.shape) for p in rest]
        ([(16, 8)], [(16,), (2, 16), (2,)])
    """
    outputs = set() if head is None else set(head.modules())
    if head is not None and head not in set(model.modules()):
        raise ValueError(f"head must be a module of the model, got {type(head).__name__}")
    layouts: dict[Tensor, str] = {}
    excluded: set[Tensor] = set()
    for module in model.modules():
        is_matrix = isinstance(module, nn.Linear)
        is_convolution = isinstance(module, _CONVOLUTIONS) and not _is_depthwise(module)
        for name, param in module.named_parameters(recurse=False):
            if name != "weight" or module in outputs or not (is_matrix or is_convolution):
                excluded.add(param)
            else:
                layouts[param] = "matrix" if is_matrix else "convolution"
    trainable = [param for param in model.parameters() if param.requires_grad]
    hidden = {p: layouts[p] for p in trainable if p in layouts and p not in excluded}
    groups = [
        {"params": [p for p in hidden if hidden[p] == layout], "layout": layout}
        for layout in ("matrix", "convolution")
    ]
    return [group for group in groups if group["params"]], [p for p in trainable if p not in hidden]


def _is_depthwise(convolution: nn.Conv1d | nn.Conv2d | nn.Conv3d) -> bool:
    return convolution.groups == convolution.in_channels > 1
