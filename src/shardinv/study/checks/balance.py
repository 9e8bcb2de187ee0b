"""Whether ranks have equal work: tiles, operators, boxes of the image, and measured seconds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean

from shardinv.denoise.tiling import TilingOptions
from shardinv.geometry import imbalance
from shardinv.study.checks.even import EVEN, better_tile, even_count, even_ranks
from shardinv.study.checks.finding import Finding, Status, by_rank, ranks

UNEVEN_SECONDS = 1.2
"""Busiest over mean above which seconds count as uneven: those of few iterations vary."""


def tiles(
    costs: Sequence[int],
    hands: Sequence[Sequence[int]],
    options: TilingOptions,
    spatial: Sequence[int],
    stride: int,
) -> Finding:
    """Whether the network's tiles are shared out evenly.

    Parameters
    ----------
    costs
        Pixels of each tile's window.
    hands
        The tiles of each rank.
    options, spatial, stride
        How the image is cut; its spatial shape; the network's stride.
    """
    count, ratio = len(hands), imbalance(costs, hands)
    loads = [sum(costs[index] for index in hand) for hand in hands]
    numbers = [len(hand) for hand in hands]
    idle = [rank for rank, hand in enumerate(hands) if not hand]
    status: Status = "failed" if idle else "ok" if ratio <= EVEN else "warning"
    message = f"{len(costs)} tiles: {by_rank(numbers)} ({by_rank(loads, _pixels)})"
    message += _ratio(ratio, count)
    if idle:
        message += f"; {ranks(idle)} without a tile"
    remedy = ""
    if status != "ok":
        choices = []
        better = better_tile(options, spatial, stride, count)
        if better is not None:
            side, load = better
            choices.append(f"tile: {side} (the busiest rank then computes {1 - load:.0%} less)")
        fewer = even_ranks(costs, count)
        if fewer:
            choices.append(f"ranks: {_either(fewer)}, to which {len(costs)} tiles are dealt evenly")
        remedy = "; or ".join(choices) or "tiles that are smaller beside the image, so more of them"
    figures = {"tiles": numbers, "pixels": loads, "busiest_over_mean": ratio, "idle_ranks": idle}
    return Finding("balance: network", status, figures, message, remedy)


def operators(costs: Sequence[float], hands: Sequence[Sequence[int]]) -> Finding:
    """Whether the operators are shared out evenly.

    Parameters
    ----------
    costs
        Of each operator, in any unit.
    hands
        The operators of each rank.
    """
    count, total, ratio = len(hands), len(costs), imbalance(costs, hands)
    numbers = [len(hand) for hand in hands]
    idle = [rank for rank, hand in enumerate(hands) if not hand]
    # Physics may be a small part of an iteration: what an idle rank costs, seconds tell.
    status: Status = "ok" if ratio <= EVEN and not idle else "warning"
    message = f"{total} operators: {by_rank(numbers)}" + _ratio(ratio, count)
    if idle:
        message += f"; {ranks(idle)} without an operator"
    remedy = ""
    if status != "ok":
        choices = [f"{_either(even_count(total, count))} operators (split them, or join some)"]
        fewer = even_ranks(costs, count)
        if fewer:
            choices.append(f"ranks: {_either(fewer)}")
        choices.append("layout: sharded, where each rank applies all operators to its box")
        remedy = "; or ".join(choices)
    figures = {"operators": numbers, "busiest_over_mean": ratio, "idle_ranks": idle}
    return Finding("balance: operators", status, figures, message, remedy)


def boxes(sizes: Sequence[int], mesh: Sequence[int]) -> Finding:
    """Whether the boxes of a sharded image are equal.

    Parameters
    ----------
    sizes
        Pixels of each rank's box.
    mesh
        Boxes along each axis.
    """
    ratio = max(sizes) / fmean(sizes)
    idle = [rank for rank, size in enumerate(sizes) if not size]
    message = f"{' × '.join(map(str, mesh))} boxes of the image: {by_rank(sizes, _pixels)}"
    message += _ratio(ratio, len(sizes))
    figures = {"pixels": list(sizes), "busiest_over_mean": ratio, "idle_ranks": idle}
    if ratio <= 1.1 and not idle:
        return Finding("balance: boxes", "ok", figures, message)
    remedy = "a number of ranks that divides the image's sides, or a larger image"
    return Finding("balance: boxes", "failed" if idle else "warning", figures, message, remedy)


def seconds(stages: Mapping[str, Sequence[float]], work: Mapping[str, Sequence[float]]) -> Finding:
    """Whether ranks compute equally long.

    Parameters
    ----------
    stages
        Seconds of computing of each rank in each stage of an iteration, communication excluded.
    work
        Of each stage whose work is known, that of each rank in any unit.
    """
    # Ranks meet at the end of each stage: what one has less in the next is no comfort.
    slowest = sum(max(times) for times in stages.values())
    ratio = slowest / max(sum(fmean(times) for times in stages.values()), 1e-12)
    message = ", ".join(f"{name} {by_rank(times, _number)} s" for name, times in stages.items())
    message = message.replace(" each s", " s each")
    message += _ratio(ratio, max(map(len, stages.values()), default=1))
    figures = {
        "seconds": {name: list(times) for name, times in stages.items()},
        "busiest_over_mean": ratio,
    }
    if ratio <= UNEVEN_SECONDS:
        return Finding("balance: seconds", "ok", figures, message)
    name, times = max(stages.items(), key=lambda item: max(item[1]) - fmean(item[1]))
    rank = max(range(len(times)), key=lambda r: times[r])
    share = work.get(name)
    message += f"; rank {rank} is slowest in {name}"
    if share is not None and share[rank] <= EVEN * fmean(share):
        message += ", with no more work than the others"
        remedy = (
            f"look at what else runs on rank {rank}'s host and device, and whether that is as fast "
            "as the others: one that is slower slows all. Check again when the machine is idle"
        )
    else:
        remedy = f"even out the {name}'s work (the lines above say how)"
    return Finding("balance: seconds", "warning", figures, message, remedy)


def _pixels(count: int) -> str:
    return f"{count / 1e6:.2f} Mpx" if count >= 1e6 else f"{count / 1e3:.1f} kpx"


def _number(value: float) -> str:
    return f"{value:.3g}"


def _ratio(value: float, ranks: int) -> str:
    return f"; busiest over mean {value:.2f}" if ranks > 1 else ""


def _either(numbers: Sequence[int]) -> str:
    return " or ".join(map(str, numbers))
