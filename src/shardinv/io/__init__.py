"""Files: images in and out, writing whole or not at all, and what ships with the package.

Nothing here knows of ranks or of inverse problems.
"""

from shardinv.io.atomic import atomic_file, write_json
from shardinv.io.images import ImageError, read_image, write_image
from shardinv.io.shipped import PHOTOGRAPHS, WEIGHTS, shipped_file

__all__ = [
    "PHOTOGRAPHS",
    "WEIGHTS",
    "ImageError",
    "atomic_file",
    "read_image",
    "shipped_file",
    "write_image",
    "write_json",
]
