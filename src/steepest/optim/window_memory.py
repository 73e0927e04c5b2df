"""How much memory a gradient window will take, and whether there is as much."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from steepest.linalg.window import full_size
from steepest.optim.window_blocks import Cohort
from steepest.optim.window_checks import by_gram
from steepest.optim.window_state import history_place

_SMALL = 1 << 20  # not worth a look at what is free

_MEMINFO = Path("/proc/meminfo")
# limit, use, and statistics of a control group, in both versions
_CONTROL_GROUPS = (
    ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current", "/sys/fs/cgroup/memory.stat"),
    (
        "/sys/fs/cgroup/memory/memory.limit_in_bytes",
        "/sys/fs/cgroup/memory/memory.usage_in_bytes",
        "/sys/fs/cgroup/memory/memory.stat",
    ),
)


def window_bytes(groups: Sequence[Mapping[str, Any]]) -> dict[torch.device, int]:
    """Return the bytes that the columns of all parameters come to take on each device.

    A window that grows without end (β > 0, no rank, ``tail_tolerance=0``) counts as
    ``history_size`` columns.
    """
    needed: Counter[torch.device] = Counter()
    for group in groups:
        slots = _slots(group)
        for param in group["params"]:
            dtype, device = history_place(param, group)
            needed[device] += slots * param.numel() * dtype.itemsize
    return dict(needed)


def check_fits(groups: Sequence[Mapping[str, Any]], states: Mapping[Tensor, Any]) -> None:
    """Raise ``ValueError`` for windows that the memory of their device cannot hold."""
    held: Counter[torch.device] = Counter()
    for state in states.values():
        if "history" in state:
            held[state["history"].device] += state["history"].nbytes
    for device, needed in window_bytes(groups).items():
        more = needed - held[device]
        free = free_bytes(device) if more > _SMALL else None
        if free is not None and more > free:
            raise ValueError(_advice(groups, device, more, free))


def check_room(cohort: Cohort, states: Mapping[Tensor, Any], slots: int) -> None:
    """Raise ``RuntimeError`` where columns that are about to be made would not fit."""
    needed: Counter[torch.device] = Counter()
    for member in cohort.members:
        state = states.get(member.param)
        if state and state["history"].shape[0] >= slots:
            continue
        dtype, device = history_place(member.param, member.group)
        needed[device] += slots * member.param.numel() * dtype.itemsize
    for device, more in needed.items():
        free = free_bytes(device) if more > _SMALL else None
        if free is not None and more > free:
            raise RuntimeError(
                f"the window needs {_size(more)} for {slots} columns on {device}, and "
                f"{_size(free)} are free; this step was not taken"
            )


def free_bytes(device: torch.device) -> int | None:
    """Return what can be allocated on a device, or None where that is not known."""
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        cached = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return int(free) + cached
    if device.type != "cpu" or not _MEMINFO.exists():
        return None
    lines = dict(line.split(":", 1) for line in _MEMINFO.read_text().splitlines())
    free = int(lines["MemAvailable"].split()[0]) * 1024
    for limit, current, statistics in _CONTROL_GROUPS:
        if Path(limit).exists() and (most := Path(limit).read_text().strip()).isdigit():
            counts = dict(line.split() for line in Path(statistics).read_text().splitlines())
            reclaimable = int(counts.get("inactive_file", 0))
            free = min(free, int(most) - int(Path(current).read_text()) + reclaimable)
    return free


def _slots(group: Mapping[str, Any]) -> int:
    slots = full_size(
        history_size=group["history_size"],
        beta=group["beta"] if by_gram(group["metric"]) else 0.0,
        tail_tolerance=group["tail_tolerance"],
        rank=group["rank"],
    )
    return group["history_size"] if slots is None else slots


def _advice(groups: Sequence[Mapping[str, Any]], device: torch.device, more: int, free: int) -> str:
    group = max(groups, key=lambda one: sum(param.numel() for param in one["params"]))
    slots = _slots(group)
    fitting = slots * free // more
    itemsize = history_place(group["params"][0], group)[0].itemsize
    what = [f"{fitting} columns" if fitting else "not one column"]
    if itemsize > 2:
        what.append(f"{fitting * itemsize // 2} with history_dtype='bfloat16'")
    if device.type != "cpu":
        what.append("more with history_device='cpu'")
    return (
        f"history_size={group['history_size']} with beta={group['beta']} and rank={group['rank']} "
        f"makes {slots} columns, which take {_size(more)} on {device}, and {_size(free)} are free; "
        f"what would fit is {', or '.join(what)}"
    )


def _size(count: int) -> str:
    return f"{count} bytes ({count / 2**30:.2f} GiB)"
