"""Which versions of what a result came from."""

from __future__ import annotations

import platform
from importlib.metadata import PackageNotFoundError, version

_PACKAGES = ("shardinv", "torch", "deepinv", "numpy", "matplotlib", "pillow")


def versions() -> dict[str, str | None]:
    """Of Python, the system, and the packages that a result depends on; None if not installed."""
    return {
        "python": platform.python_version(),
        "platform": platform.platform(),
        **{name: _version(name) for name in _PACKAGES},
    }


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
