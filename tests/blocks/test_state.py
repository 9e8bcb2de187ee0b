"""A block shares the state of what it wraps. No processes."""

from __future__ import annotations

from copy import deepcopy

import torch
from torch import nn

from shardinv.blocks import share_state


class Wrapped(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 2)
        self.weight = nn.Parameter(torch.rand(2))
        self.register_buffer("saved", torch.rand(2))
        self.register_buffer("unsaved", torch.rand(2), persistent=False)


class Block(nn.Module):
    def __init__(self, wrapped: nn.Module) -> None:
        super().__init__()
        object.__setattr__(self, "wrapped", wrapped)
        share_state(self, wrapped)


def test_one_state_under_the_wrapped_names() -> None:
    wrapped = Wrapped()
    block = Block(wrapped)
    assert list(block.state_dict()) == list(wrapped.state_dict())
    assert "unsaved" not in block.state_dict()
    assert block.layer is wrapped.layer
    block.weight = nn.Parameter(torch.zeros(2))
    block.saved = torch.zeros(2)
    block.extra = nn.Linear(1, 1)
    assert torch.equal(wrapped.weight.detach(), torch.zeros(2))
    assert torch.equal(wrapped.saved, torch.zeros(2))
    assert wrapped.extra is block.extra
    block.double()
    assert wrapped.unsaved.dtype == torch.float64
    assert wrapped.layer.weight.dtype == torch.float64


def test_deep_copy_shares_its_own() -> None:
    block = Block(Wrapped())
    twin = deepcopy(block)
    assert twin.weight is twin.wrapped.weight
    assert twin.weight is not block.weight
    twin.register_parameter("more", nn.Parameter(torch.rand(1)))
    assert twin.wrapped.more is twin.more
    assert not hasattr(block.wrapped, "more")
