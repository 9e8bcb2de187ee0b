"""Files: images in and out, whole or by regions, and what ships with the package.

A file is written whole or not at all. Only ``sharded`` knows of ranks; nothing here knows of
inverse problems.
"""

from shardinv.io.atomic import atomic_file, write_json
from shardinv.io.images import ImageError, read_image, write_image
from shardinv.io.regions import ImageShape, image_shape, read_region
from shardinv.io.sharded import sharded_image, write_sharded_image
from shardinv.io.shipped import PHOTOGRAPH_CREDIT, PHOTOGRAPHS, WEIGHTS, shipped_file

__all__ = [
    "PHOTOGRAPHS",
    "PHOTOGRAPH_CREDIT",
    "WEIGHTS",
    "ImageError",
    "ImageShape",
    "atomic_file",
    "image_shape",
    "read_image",
    "read_region",
    "sharded_image",
    "shipped_file",
    "write_image",
    "write_json",
    "write_sharded_image",
]
