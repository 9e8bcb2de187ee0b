"""One iteration under PyTorch's profiler: time in kernels apart from the gaps between them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch._C._autograd import DeviceType
from torch.profiler import ProfilerActivity

from shardinv.ledger import Event
from shardinv.study.measurement import Kernels

_LONGEST = 12
# What PyTorch calls its collectives, on the host and on GPUs.
_MESSAGES = ("c10d::", "gloo:", "nccl", "record_param_comms")


def profile(run: Callable[[], None], events: Sequence[Event], gpu: bool) -> Kernels:
    """Run something under the profiler.

    Parameters
    ----------
    run
        An iteration.
    events
        The ledger's, which grow while it runs; without a GPU they tell communication.
    gpu
        Whether the current GPU computes.
    """
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if gpu else [])]
    known = len(events)
    with torch.profiler.profile(activities=activities) as profiler:
        start = time.perf_counter()
        run()
        if gpu:
            torch.cuda.synchronize()
        seconds = time.perf_counter() - start
    # The step that ends the profile is PyTorch's own.
    noted = [e for e in profiler.events() or [] if not e.name.startswith("Profiler")]
    kind = DeviceType.CUDA if gpu else DeviceType.CPU
    kernels = [e for e in noted if e.device_type == kind and (gpu or e.cpu_parent is None)]
    work = [e for e in kernels if not _is_message(e.name)]
    computing = _covered(_intervals(work))
    if gpu:
        communicating = _covered(_intervals(kernels)) - computing
    else:
        communicating = sum(event.exposed for event in events[known:])
    own = "self_device_time_total" if gpu else "self_cpu_time_total"
    average = sorted(profiler.key_averages(), key=lambda each: -getattr(each, own))
    longest = [
        (each.key, each.count, getattr(each, own) / 1e6)
        for each in average
        if not each.key.startswith("Profiler") and getattr(each, own) > 0
    ]
    return Kernels(seconds, computing, communicating, longest[:_LONGEST])


def _is_message(name: str) -> bool:
    return name.lower().startswith(_MESSAGES)


def _intervals(events: Iterable[Any]) -> list[tuple[float, float]]:
    return [(event.time_range.start / 1e6, event.time_range.end / 1e6) for event in events]


def _covered(intervals: Iterable[tuple[float, float]]) -> float:
    """Seconds in which at least one of the intervals is.

    Examples
    --------
    >>> _covered([(0.0, 2.0), (1.0, 3.0), (5.0, 6.0)])
    4.0
    """
    total, reached = 0.0, float("-inf")
    for begin, end in sorted(intervals):
        total += max(0.0, end - max(begin, reached))
        reached = max(reached, end)
    return total
