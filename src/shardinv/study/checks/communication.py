"""What the measured links mean for a run."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from shardinv.study.checks.finding import Finding
from shardinv.study.checks.links import Links, Pair

_SLOW_PAIR = 0.4
"""Part of the median bandwidth below which a pair is slow."""
_SLOW_MESSAGE = 2e-3
"""Seconds of a small message above which processes wait for a core or a poor network."""
_LARGE_SHARE = 0.25


def latency(links: Links) -> Finding:
    """Whether small messages are fast."""
    name = "links: latency"
    slowest = max(links.pairs, key=lambda pair: pair.seconds)
    middle = median(pair.seconds for pair in links.pairs)
    message = (
        f"{_time(middle)} for a small message by {links.backend}, {_time(links.seconds)} for a "
        "small all-reduce"
    )
    message += _slowest(links, slowest, _time(slowest.seconds))
    figures = {
        "backend": links.backend,
        "seconds": middle,
        "all_reduce_seconds": links.seconds,
        "pairs": {_ends(pair): pair.seconds for pair in links.pairs},
    }
    if slowest.seconds <= _SLOW_MESSAGE:
        return Finding(name, "ok", figures, message)
    if _together(links, slowest):
        remedy = (
            "fewer threads or ranks, or an idle host: processes wait for a core before they answer"
        )
    else:
        remedy = (
            "a faster network interface for the messages: GLOO_SOCKET_IFNAME or NCCL_SOCKET_IFNAME "
            "(ip address lists them)"
        )
    return Finding(name, "warning", figures, message, remedy)


def bandwidth(links: Links) -> Finding:
    """Whether large messages are fast, between all ranks alike."""
    name = "links: bandwidth"
    slowest = min(links.pairs, key=lambda pair: pair.bandwidth)
    alike = [p for p in links.pairs if _together(links, p) == _together(links, slowest)]
    middle = median(pair.bandwidth for pair in alike)
    message = (
        f"{_rate(middle)} between two ranks by {links.backend}, {_rate(links.bandwidth)} sent by "
        "each in an all-reduce"
    )
    message += _slowest(links, slowest, _rate(slowest.bandwidth))
    figures = {
        "backend": links.backend,
        "bytes_per_second": middle,
        "all_reduce_bytes_per_second": links.bandwidth,
        "pairs": {_ends(pair): pair.bandwidth for pair in links.pairs},
    }
    if slowest.bandwidth >= _SLOW_PAIR * middle:
        return Finding(name, "ok", figures, message)
    where = "host" if _together(links, slowest) else "network between the hosts"
    remedy = f"look at the {where} of ranks {_ends(slowest)}: other programs, cabling, topology"
    return Finding(name, "warning", figures, message, remedy)


def share(links: Links, sent: Sequence[float], calls: float, computing: float) -> Finding:
    """What part of an iteration messages take, from the measured links.

    Parameters
    ----------
    links
        Measured.
    sent
        Bytes that each rank sends in an iteration.
    calls
        Operations of a rank in an iteration.
    computing
        Seconds of an iteration of the busiest rank without them.
    """
    name = "links: share"
    slowest = min(links.bandwidth, *(pair.bandwidth for pair in links.pairs))
    seconds = max(sent) / slowest + calls * links.seconds
    part = seconds / max(seconds + computing, 1e-12)
    message = (
        f"{max(sent) / 1e6:.2f} MB in {calls:g} operations an iteration: about {_time(seconds)} "
        f"beside {_time(computing)} of computing ({part:.0%})"
    )
    figures = {
        "bytes_sent": list(sent),
        "calls": calls,
        "seconds": seconds,
        "computing_seconds": computing,
        "share": part,
    }
    if part <= _LARGE_SHARE:
        return Finding(name, "ok", figures, message)
    remedy = (
        "layout: sharded, where only halos move; fewer ranks; a larger problem on each; or a "
        "faster network"
    )
    return Finding(name, "warning", figures, message, remedy)


def _slowest(links: Links, pair: Pair, figure: str) -> str:
    if len(links.pairs) == 1:
        return ""
    where = "on one host" if _together(links, pair) else "on two hosts"
    return f"; slowest between ranks {_ends(pair)} ({where}): {figure}"


def _together(links: Links, pair: Pair) -> bool:
    one, other = pair.ranks
    return links.hosts[one] == links.hosts[other]


def _ends(pair: Pair) -> str:
    return f"{pair.ranks[0]} and {pair.ranks[1]}"


def _time(seconds: float) -> str:
    if seconds < 1e-3:
        return f"{1e6 * seconds:.0f} µs"
    return f"{1e3 * seconds:.3g} ms" if seconds < 0.9995 else f"{seconds:.3g} s"


def _rate(rate: float) -> str:
    return f"{rate / 1e9:.3g} GB/s" if rate >= 1e9 else f"{rate / 1e6:.3g} MB/s"
