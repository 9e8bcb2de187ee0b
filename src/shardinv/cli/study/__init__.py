"""The commands of a study: run it, and see what it says.

``run`` measures the points of a configuration file, ``point`` is what every rank of one does,
``results`` are the files in which they are kept, ``record`` what the study was; ``table`` shows
them, ``report`` makes a page of them.
"""

from shardinv.cli.study.run import study

__all__ = ["study"]
