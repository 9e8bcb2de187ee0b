"""The learned step: a network run on overlapping tiles of the image, shared between the ranks.

``processing`` is the block, ``tiling`` deals the tiles, ``strides`` knows at which pixels the tiles
of a network may start, ``conditioning`` cuts noise maps and other arguments along with the image,
``prior`` puts the block into a prior.
"""

from shardinv.denoise.neighbours import plain_class, twin
from shardinv.denoise.prior import distribute_prior
from shardinv.denoise.processing import DistributedProcessing
from shardinv.denoise.tiling import TilingOptions

__all__ = ["DistributedProcessing", "TilingOptions", "distribute_prior", "plain_class", "twin"]
