"""The photographs and weights that ship with the package.

Their origins and licences are in ``docs/data.md``; the licence texts lie beside the files.
"""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

PHOTOGRAPHS = {"picos": "photos/picos.jpg", "stream": "photos/stream.jpg"}
# The licence of the shipped photographs asks that the author is named where they are shown.
PHOTOGRAPH_CREDIT = "Aitzol Berasategi, 2018, CC BY 4.0"
WEIGHTS = {
    "ffdnet": "weights/ffdnet_color_deepinv_fp16.pt",
    "drunet": "weights/drunet_small_residual_fp16.pt",
}


def shipped_file(name: str) -> Path:
    """Path of a shipped photograph (``"picos"``, ``"stream"``) or weights file.

    Raises
    ------
    KeyError
        If nothing of that name ships.

    Examples
    --------
    >>> shipped_file("picos").name
    'picos.jpg'
    """
    known = PHOTOGRAPHS | WEIGHTS
    if name not in known:
        raise KeyError(f"no shipped file is called {name!r}; there are {', '.join(sorted(known))}")
    # The package is installed as plain files (torch loads weights from a path, not from a zip).
    return Path(str(files("shardinv") / "data" / known[name]))
