"""Measurements that others have published, to draw beside one's own.

Distributed plug-and-play inference with ``deepinv.distributed`` on Tesla V100-SXM2-32GB, four a
node: multi-frame super-resolution, eight operators, DRUNet, float32. From the benchmark
``numpex/benchmark_invprob_largescale`` (2026, MIT licence, in the folder of the data).
"""

from shardinv.study.published.communication import PublishedCommunication, published_communication
from shardinv.study.published.quality import published_quality
from shardinv.study.published.scaling import (
    WINDOW,
    PublishedPoint,
    published_points,
    published_scaling,
)

__all__ = [
    "WINDOW",
    "PublishedCommunication",
    "PublishedPoint",
    "published_communication",
    "published_points",
    "published_quality",
    "published_scaling",
]
