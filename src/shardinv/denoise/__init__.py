"""The learned step: a network run on overlapping tiles of the image, shared between the ranks.

``processing`` is the block, ``strides`` knows at which pixels a network's tiles may start,
``conditioning`` cuts noise maps and other arguments along with the image, ``prior`` puts the block
into a prior.
"""

from shardinv.denoise.prior import distribute_prior
from shardinv.denoise.processing import DistributedProcessing, TilingOptions

__all__ = ["DistributedProcessing", "TilingOptions", "distribute_prior"]
