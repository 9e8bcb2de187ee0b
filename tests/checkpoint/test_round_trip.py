"""What is saved is what is loaded, by any number of ranks, on any mesh, in either layout."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from shardinv.checkpoint import parts
from shardinv.tensor import ShardedTensor
from tests.harness import WorkerPool

SIZES = (1, 2, 3, 4)


def image(*shape: int, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.arange(int(np.prod(shape)), dtype=torch.float64).reshape(shape).to(dtype)


def network() -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.Conv2d(4, 1, 3))


def trained() -> tuple[nn.Module, torch.optim.Optimizer]:
    model = network()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, betas=(0.8, 0.9))
    for _ in range(2):
        optimizer.zero_grad()
        model(image(1, 1, 9, 9, dtype=torch.float32) / 81).square().sum().backward()
        optimizer.step()
    return model, optimizer


def _save(ctx: Any, folder: str, mesh: tuple[int, ...] | None) -> str:
    x = ctx.shard(image(2, 3, 13, 9), mesh)
    state = {
        "iteration": 7,
        "residual": 0.1 + 0.2,
        "nothing": None,
        "flags": (True, "yes", [1, 2.5, 1 - 2j]),
        3: float("inf"),
        "momentum": x * 2,
        "crop": x[:, :, 1:],
        "flat": x.reshape(2, -1),
        "last": x[..., None].expand(-1, -1, -1, -1, 2).clone() if False else x + 1,
        "plain": image(2, 3, 13, 9) * 3,
        "kernel": image(5, 5, dtype=torch.float16),
        "mask": image(1, 1, 4, 3) > 5,
        "spectrum": torch.complex(image(3, 4), image(3, 4)),
        "scalar": torch.tensor(4),
        "empty": torch.zeros(0, 3),
        "array": np.arange(6, dtype=np.int32).reshape(2, 3),
        "number": np.float32(1.5),
    }
    path = ctx.save(folder, x=x, state=state)
    return str(path)


def _load(ctx: Any, folder: str, options: dict[str, Any]) -> tuple[Any, Any]:
    """What was loaded, sharded tensors as their boxes and wholes."""
    like = options.pop("like", None)
    if like is not None:
        options["like"] = image(2, 3, 13, 9) if like == "plain" else ctx.shard(image(2, 3, 13, 9))
    x, state = ctx.load(folder, **options)

    def whole(value: Any) -> Any:
        if isinstance(value, ShardedTensor):
            assert value.to_local().device == ctx.device
            return {
                "whole": ctx.gather(value),
                "boxes": [str(box) for box in value.sharding.partition.boxes],
                "folded": value.folded,
            }
        return value

    return whole(x), {key: whole(value) for key, value in state.items()}


def _check(x: Any, state: dict[Any, Any], sharded: bool) -> None:
    expected = image(2, 3, 13, 9)
    assert isinstance(x, dict) == sharded
    assert torch.equal(x["whole"] if sharded else x, expected)
    for name, value in (
        ("momentum", expected * 2),
        ("crop", expected[:, :, 1:]),
        ("flat", expected.reshape(2, -1)),
        ("last", expected + 1),
    ):
        found = state[name]
        assert isinstance(found, dict) == sharded, name
        assert torch.equal(found["whole"] if sharded else found, value), name
    assert state["iteration"] == 7
    assert state["residual"] == 0.1 + 0.2
    assert state["nothing"] is None
    assert state["flags"] == (True, "yes", [1, 2.5, 1 - 2j])
    assert state[3] == float("inf")
    plain = state["plain"]
    assert torch.equal(plain["whole"] if isinstance(plain, dict) else plain, expected * 3)
    assert torch.equal(state["kernel"], image(5, 5, dtype=torch.float16))
    assert torch.equal(state["mask"], image(1, 1, 4, 3) > 5)
    assert torch.equal(state["spectrum"], torch.complex(image(3, 4), image(3, 4)))
    assert state["scalar"].item() == 4
    assert state["scalar"].shape == ()
    assert state["empty"].shape == (0, 3)
    assert isinstance(state["array"], np.ndarray)
    assert state["array"].tolist() == [[0, 1, 2], [3, 4, 5]]
    assert isinstance(state["number"], np.float32)
    assert state["number"] == 1.5


@pytest.mark.parametrize(("size", "mesh"), [(1, None), (3, None), (4, (2, 2))])
def test_any_number_of_ranks_and_mesh(
    pool: WorkerPool, tmp_path: Path, size: int, mesh: tuple[int, ...] | None
) -> None:
    (path, *others) = pool.run(_save, str(tmp_path), mesh, world_size=size)
    assert all(other == path for other in others)
    saved_boxes = None
    for readers in SIZES:
        for options, sharded in (
            ({}, True),
            ({"mesh": (1, readers)}, True),
            ({"layout": "replicated"}, False),
            ({"like": "plain"}, False),
            ({"like": "sharded"}, True),
        ):
            for x, state in pool.run(_load, str(tmp_path), dict(options), world_size=readers):
                _check(x, state, sharded)
                if sharded:
                    assert (state["flat"]["folded"] is not None) == sharded
                if options == {} and readers == size:
                    saved_boxes = x["boxes"]
                if "mesh" in options:
                    assert all(box.startswith("[0:13") for box in x["boxes"])
    if mesh is not None:
        assert saved_boxes == ["[0:7, 0:5]", "[0:7, 5:9]", "[7:13, 0:5]", "[7:13, 5:9]"]


def _save_plain(ctx: Any, folder: str) -> None:
    x = image(1, 2, 7, 5)
    ctx.save(folder, x, {"z": x + 1, "weights": image(4, 2, 3, 3)})


def test_a_plain_image_becomes_sharded(pool: WorkerPool, tmp_path: Path) -> None:
    pool.run(_save_plain, str(tmp_path), world_size=2)
    for readers in (1, 4):
        ((x, state), *_) = pool.run(_load, str(tmp_path), {"layout": "sharded"}, world_size=readers)
        assert torch.equal(x["whole"], image(1, 2, 7, 5))
        # What goes with the iterate lies as it does; weights stay whole.
        assert torch.equal(state["z"]["whole"], image(1, 2, 7, 5) + 1)
        assert torch.equal(state["weights"], image(4, 2, 3, 3))
    ((x, _), *_) = pool.run(_load, str(tmp_path), {}, world_size=3)
    assert torch.equal(x, image(1, 2, 7, 5))


def _save_model(ctx: Any, folder: str) -> None:
    model, optimizer = trained()
    ctx.save(folder, state={"model": model, "optimizer": optimizer.state_dict()})


def _load_model(ctx: Any, folder: str) -> list[Tensor]:
    model = network()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1.0)
    x, state = ctx.load(folder)
    assert x is None
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    assert optimizer.param_groups[0]["betas"] == (0.8, 0.9)
    optimizer.zero_grad()
    model(image(1, 1, 9, 9, dtype=torch.float32)).sum().backward()
    optimizer.step()
    return [p.detach() for p in model.parameters()]


def test_models_and_optimizers(pool: WorkerPool, tmp_path: Path) -> None:
    pool.run(_save_model, str(tmp_path), world_size=3)
    model, optimizer = trained()
    optimizer.zero_grad()
    model(image(1, 1, 9, 9, dtype=torch.float32)).sum().backward()
    optimizer.step()
    for found in pool.run(_load_model, str(tmp_path), world_size=2):
        assert all(torch.equal(a, b) for a, b in zip(found, model.parameters(), strict=True))


def _draw(ctx: Any, folder: str, load: bool) -> float:
    torch.manual_seed(100 + ctx.rank)
    if load:
        torch.manual_seed(0)
        ctx.load(folder)
    else:
        torch.rand(5)
        ctx.save(folder, state=1)
    return float(torch.rand(()))


def test_random_generators(pool: WorkerPool, tmp_path: Path) -> None:
    drawn = pool.run(_draw, str(tmp_path), False, world_size=3)
    assert len(set(drawn)) == 3
    assert pool.run(_draw, str(tmp_path), True, world_size=3) == drawn
    assert pool.run(_draw, str(tmp_path), True, world_size=2) == drawn[:2]
    # A rank without counterpart keeps its own.
    torch.manual_seed(0)
    fresh = float(torch.rand(()))
    assert pool.run(_draw, str(tmp_path), True, world_size=4) == [*drawn, fresh]


def _bytes(ctx: Any, folder: str) -> tuple[int, list[int]]:
    x = ctx.zeros((1, 3, 256, 200), dtype=torch.float64)
    path = Path(ctx.save(folder, x))
    return 8 * x.to_local().numel(), [f.stat().st_size for f in sorted(path.glob("*.distcp"))]


def test_every_rank_writes_its_box(pool: WorkerPool, tmp_path: Path) -> None:
    for rank, (mine, files) in enumerate(pool.run(_bytes, str(tmp_path), world_size=4)):
        assert len(files) == 4
        # And some kilobytes of headers and of random state.
        assert mine < files[rank] < mine + 20_000


def test_chunks_are_small_and_cover() -> None:
    values = image(2, 3, 17, 9)
    part = parts.Part("x", (2, 3, 40, 9), (0, 0, 20, 0), values)
    for limit in (8, 70, 8 * 9, 8 * 9 * 5, 8 * 9 * 17 * 2, 10**6):
        seen = torch.zeros(2, 3, 40, 9)
        for offset, sizes in part.chunks(limit):
            assert 8 * np.prod(sizes) <= limit
            view = part.view(offset, sizes)
            assert view.shape == sizes
            index = tuple(slice(a, a + n) for a, n in zip(offset, sizes, strict=True))
            seen[index] += 1
            assert view.flatten()[0] == values[offset[0], offset[1], offset[2] - 20, offset[3]]
        assert torch.equal(seen[:, :, 20:37], torch.ones(2, 3, 17, 9))
        assert seen.sum() == values.numel()
    assert list(parts.Part("e", (0, 3), (0, 0), torch.zeros(0, 3)).chunks()) == []


def test_the_manifest_is_readable(pool: WorkerPool, tmp_path: Path) -> None:
    pool.run(_save_plain, str(tmp_path), world_size=1)
    manifest = json.loads((tmp_path / "checkpoint-000001" / "shardinv.json").read_text())
    assert manifest["format"] == 1
    assert manifest["ranks"] == 1
    assert manifest["content"]["x"]["shape"] == [1, 2, 7, 5]
