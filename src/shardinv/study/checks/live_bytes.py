"""The most bytes that tensors hold at once while something is computed."""

from __future__ import annotations

import weakref
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class LiveBytes(TorchDispatchMode):
    """Counts what is made inside: ``with LiveBytes() as live: ...``, then ``live.most``.

    Exact, on any device, for what tensors hold; workspaces that a kernel takes for itself are not
    seen.
    """

    def __init__(self) -> None:
        super().__init__()
        self.most = 0
        self._now = 0
        self._known: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Do what is asked for, and look at what it made."""
        result = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(result):
            if isinstance(leaf, torch.Tensor):
                self._count(leaf.untyped_storage())
        return result

    def _count(self, storage: torch.UntypedStorage) -> None:
        key = storage._cdata
        if key in self._known:
            return
        self._known.add(key)
        self._now += storage.nbytes()
        self.most = max(self.most, self._now)
        weakref.finalize(storage, self._gone, key, storage.nbytes())

    def _gone(self, key: int, count: int) -> None:
        self._known.discard(key)
        self._now -= count
