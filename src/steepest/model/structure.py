"""What a parameter is, told by the module that owns it; by names only as a last resort."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn

from steepest.model.plan import View


@dataclass(frozen=True)
class Seen:
    """What a parameter is.

    Attributes:
        view: its kind.
        reason: why, in words.
        options: of its parameter group, where it holds matrices.
    """

    view: View
    reason: str
    options: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Owner:
    """A module that owns a parameter, and where it stands.

    Attributes:
        path: of the module in the model.
        module: itself.
        attribute: under which it owns the parameter.
        parent: of the module; None for the model itself.
    """

    path: str
    module: nn.Module
    attribute: str
    parent: nn.Module | None

    @property
    def last_name(self) -> str:
        """The module's own name in its parent."""
        return self.path.rpartition(".")[2]


MATRIX_VIEWS: tuple[View, ...] = ("matrix", "convolution", "experts", "fused blocks")

_EMBEDDINGS = (nn.Embedding, nn.EmbeddingBag)
_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
_TRANSPOSED = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
_LSTM, _GRU = (nn.LSTM, nn.LSTMCell), (nn.GRU, nn.GRUCell)


def see(owner: Owner, param: Tensor) -> Seen:
    """Return what a parameter is.

    Args:
        owner: who has it.
        param: itself.
    """
    if isinstance(owner.module, _EMBEDDINGS):
        return Seen("embedding", f"the table of {_article(owner.module)}")
    if param.ndim < 2 or param.numel() == max(param.shape):
        return Seen("vector", _vector_reason(owner))
    for rule in _RULES:
        seen = rule(owner, param)
        if seen is not None:
            return seen
    return _unknown(owner, param)


def _linear(owner: Owner, param: Tensor) -> Seen | None:
    module = owner.module
    stored_in_out = (
        type(module).__name__ == "Conv1D" and getattr(module, "nf", None) == (param.shape[-1])
    )
    if owner.attribute != "weight" or not (isinstance(module, nn.Linear) or stored_in_out):
        return None
    outputs, inputs = param.shape[::-1] if stored_in_out else param.shape
    if _counts_experts(owner, outputs):
        return Seen("other", f"a router: one output for each of {outputs} experts")
    options: dict[str, Any] = {"transposed": True} if stored_in_out else {}
    storage = ", stored (in, out)" if stored_in_out else ""
    fused = _fused_attention(owner, outputs, inputs) or _fused_gate(owner, outputs)
    if fused is not None:
        return Seen("fused blocks", fused.reason + storage, {**options, **fused.options})
    return Seen("matrix", f"the weight of {_article(module)}{storage}", options)


def _convolution(owner: Owner, param: Tensor) -> Seen | None:
    module = owner.module
    if owner.attribute != "weight" or not isinstance(module, (*_CONVOLUTIONS, *_TRANSPOSED)):
        return None
    options: dict[str, Any] = {"layout": "convolution"}
    transposed = isinstance(module, _TRANSPOSED)
    if transposed:
        options["transposed"] = True
    if module.groups > 1:
        if module.groups in (module.in_channels, module.out_channels):
            return Seen("vector", "a depthwise kernel, which mixes no channels")
        options["groups"] = module.groups
    kernel = param.shape[2:].numel()
    inner = f"in·{kernel}" if kernel > 1 else "in"
    return Seen("convolution", f"the kernel of {_article(module)}, out × {inner}", options)


def _attention(owner: Owner, _: Tensor) -> Seen | None:
    if not isinstance(owner.module, nn.MultiheadAttention):
        return None
    width = owner.module.embed_dim
    if owner.attribute == "in_proj_weight":
        return Seen(
            "fused blocks",
            "query, key and value of nn.MultiheadAttention in one weight",
            {"split": (width, width, width)},
        )
    if owner.attribute.endswith("proj_weight"):
        return Seen("matrix", f"the {owner.attribute[0]} projection of nn.MultiheadAttention")
    return Seen("vector", f"{owner.attribute} of nn.MultiheadAttention")


def _recurrent(owner: Owner, _: Tensor) -> Seen | None:
    if not isinstance(owner.module, (nn.RNNBase, nn.RNNCellBase)):
        return None
    gates = 4 if isinstance(owner.module, _LSTM) else 3 if isinstance(owner.module, _GRU) else 1
    if owner.attribute.startswith("weight_hr"):
        return Seen("matrix", f"the projection of {_article(owner.module)}")
    where = "input" if "_ih" in owner.attribute else "hidden state"
    if gates == 1:
        return Seen("matrix", f"the {where} weight of {_article(owner.module)}")
    return Seen(
        "fused blocks",
        f"{gates} gates of {_article(owner.module)} on the {where}, each a matrix",
        {"heads": gates},
    )


def _experts(owner: Owner, param: Tensor) -> Seen | None:
    """A stack ``(experts, m, n)`` that a module of no known kind owns."""
    if param.ndim != 3 or min(param.shape[1:]) == 1 or param.shape[0] == 1:
        return None
    options: dict[str, Any] = {"layout": "stack"}
    reason = f"a stack of {param.shape[0]} matrices in {_article(owner.module)}"
    if getattr(owner.module, "is_transposed", False):
        options["transposed"] = True
        reason += ", stored (in, out)"
    outputs = param.shape[2 if "transposed" in options else 1]
    if "gate_up" in owner.attribute and outputs % 2 == 0:
        half = outputs // 2
        if getattr(owner.module, "is_concatenated", True):
            options["split"] = (half, half)
        else:
            options.update(split=(1, 1), interleaved=half)
        return Seen("fused blocks", f"{reason}, of gate and up by its name", options)
    return Seen("experts", reason, options)


_RULES: tuple[Callable[[Owner, Tensor], Seen | None], ...] = (
    _linear,
    _convolution,
    _attention,
    _recurrent,
    _experts,
)


def _unknown(owner: Owner, param: Tensor) -> Seen:
    words = ("embed", "position", "token", "pos_", "_pos", "cls")
    full = f"{owner.path}.{owner.attribute}".lower()
    if any(word in full for word in words):
        return Seen("embedding", f"of {_article(owner.module)}, an embedding by its name")
    if param.ndim == 2:
        if _counts_experts(owner, param.shape[0]):
            return Seen("other", f"a router: one output for each of {param.shape[0]} experts")
        return Seen("matrix", f"of {_article(owner.module)}, taken as (out, in)")
    return Seen(
        "other", f"{param.ndim} axes of {_article(owner.module)}, a module of no known kind"
    )


def _vector_reason(owner: Owner) -> str:
    if "bias" in owner.attribute:
        return f"the bias of {_article(owner.module)}"
    if "norm" in type(owner.module).__name__.lower():
        return f"the gain of {_article(owner.module)}"
    return f"a vector of {_article(owner.module)}"


def _counts_experts(owner: Owner, outputs: int) -> bool:
    """Whether a matrix has an output for each expert beside it."""
    siblings = dict(owner.parent.named_children()) if owner.parent is not None else {}
    experts = siblings.get("experts")
    if experts is None or experts is owner.module:
        return False
    count = getattr(experts, "num_experts", None)
    if count is None and isinstance(experts, nn.ModuleList):
        count = len(experts)
    if count is None:
        stacks = [p.shape[0] for p in experts.parameters(recurse=False) if p.ndim == 3]
        count = stacks[0] if stacks else None
    return count == outputs


def _fused_attention(owner: Owner, outputs: int, inputs: int) -> Seen | None:
    """Query, key and value in one projection, told by the numbers of heads of the parent."""
    if owner.parent is None:
        return None
    heads = _number(
        owner.parent, ("num_heads", "n_head", "num_attention_heads", "n_heads", "heads")
    )
    if heads is None or heads < 1:
        return None
    groups = _number(owner.parent, ("num_key_value_heads", "num_kv_heads", "n_kv_heads")) or heads
    size = _number(owner.parent, ("head_dim", "head_size")) or inputs // heads
    if size * (heads + 2 * groups) != outputs:
        return None
    if owner.last_name == "query_key_value" and groups == heads:
        return Seen(
            "fused blocks",
            f"query, key and value of {heads} heads, one head after the other by its name",
            {"split": (size, size, size), "interleaved": heads},
        )
    split = (heads * size, groups * size, groups * size)
    return Seen(
        "fused blocks",
        f"query, key and value in one weight: {heads} and {groups} heads of {size}",
        {"split": split},
    )


def _fused_gate(owner: Owner, outputs: int) -> Seen | None:
    if "gate_up" not in owner.last_name or outputs % 2:
        return None
    return Seen(
        "fused blocks", "gate and up in one weight, by its name", {"split": (outputs // 2,) * 2}
    )


def _number(module: nn.Module, names: Iterable[str]) -> int | None:
    for holder in (module, getattr(module, "config", None)):
        for name in names:
            value = getattr(holder, name, None)
            if isinstance(value, int) and not isinstance(value, bool):
                return value
    return None


def _article(module: nn.Module) -> str:
    kind = type(module)
    prefix = "nn." if getattr(nn, kind.__name__, None) is kind else ""
    name = prefix + kind.__name__
    return f"{'an' if name[0] in 'AEIOUaeiou' or prefix else 'a'} {name}"
