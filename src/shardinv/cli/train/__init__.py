"""The command that trains an unrolled solver from a configuration file.

``settings`` is the file's structure, ``start`` reads and checks it and starts the ranks, ``run`` is
what every rank does, ``samples`` and ``model`` make what is trained, ``report`` writes what stays.
"""

from shardinv.cli.train.run import run_train
from shardinv.cli.train.settings import TrainSettings
from shardinv.cli.train.start import train

__all__ = ["TrainSettings", "run_train", "train"]
