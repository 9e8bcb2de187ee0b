"""What the checks of the machine say of planted figures."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from shardinv.study.checks import communication
from shardinv.study.checks.finding import Finding, worst
from shardinv.study.checks.gpus import Gpu, gpus
from shardinv.study.checks.links import Links, Pair, pairs_to_measure
from shardinv.study.checks.load import Load, load
from shardinv.study.checks.memory import Memory, memory
from shardinv.study.checks.patience import patience
from shardinv.study.checks.threads import Threads, threads
from shardinv.study.checks.weights import seen_here, wanted_files, weights
from shardinv.study.plan.point import Point

GB = 10**9


def test_too_many_threads() -> None:
    found = threads([Threads(0, 4, (0, 1, 2, 3)) for _ in range(2)])
    assert found.status == "warning"
    assert "2 ranks with 8 threads in all on 4 cores: 2 threads a core" in found.message
    assert "threads: 2" in found.remedy


def test_threads_of_this_process() -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(4096)
    try:
        found = threads([Threads.here(0)])
    finally:
        torch.set_num_threads(before)
    assert found.status == "warning"
    assert "4096 threads" in found.message


def test_more_ranks_than_cores() -> None:
    found = threads([Threads(0, 1, (0, 1)) for _ in range(3)])
    assert "ranks: 2 on a host" in found.remedy
    # Each rank bound to a core of its own is right; all to the same one is not.
    assert threads([Threads(0, 1, (core,)) for core in range(3)]).status == "ok"
    assert threads([Threads(0, 1, (0,)) for _ in range(3)]).status == "warning"
    # A container may give less time than cores; another host has cores of its own.
    assert threads([Threads(0, 1, (0, 1, 2), 1.5) for _ in range(3)]).status == "warning"
    assert threads([Threads(host, 1, (0,)) for host in range(3)]).status == "ok"


def test_idle_cores_are_told() -> None:
    found = threads([Threads(0, 1, tuple(range(8))) for _ in range(2)])
    assert found.status == "ok"
    assert "threads: 4 would use them all" in found.message


def test_load() -> None:
    assert load([Load(0, 0.3, 4)]).status == "ok"
    busy = load([Load(0, 0.3, 4), Load(1, 3.0, 4)])
    assert busy.status == "warning"
    assert "host 1: 3.00 on 4 cores" in busy.message
    assert load([Load(0, None, 4)]).status == "ok"


def _gpu(number: int, free: int = 79, name: str = "H100") -> Gpu:
    return Gpu(0, 4, name, f"GPU-{number}", free * GB, 80 * GB)


@pytest.mark.parametrize(
    ("told", "backend", "status", "words"),
    [
        ([Gpu(0, 0)], None, "ok", "none there"),
        ([Gpu(0, 2)], None, "ok", "device: gpu uses them"),
        ([_gpu(0), _gpu(1)], "nccl", "ok", "H100; 79 GB each free"),
        ([_gpu(0), _gpu(1), _gpu(0)], "gloo", "failed", "ranks 0, 2 share one GPU"),
        ([_gpu(0), _gpu(1)], "gloo", "warning", "messages go by gloo"),
        ([_gpu(0), _gpu(1, 20)], "nccl", "warning", "rank 1 not alone"),
        ([_gpu(0), _gpu(1, name="V100")], "nccl", "warning", "H100, V100"),
    ],
)
def test_gpus(told: list[Gpu], backend: str | None, status: str, words: str) -> None:
    found = gpus(told, backend)
    assert found.status == status
    assert words in found.message


def test_little_shared_memory() -> None:
    told = [Gpu(0, 2, "H100", f"GPU-{n}", 79 * GB, 80 * GB, 64 * 2**20) for n in range(2)]
    found = gpus(told, "nccl")
    assert found.status == "warning"
    assert "--shm-size" in found.remedy


def test_time_outs() -> None:
    assert patience([300.0, 300.0], [None, None], 2.0).status == "ok"
    short = patience([20.0, 20.0], ["20", "20"], 7.0)
    assert short.status == "warning"
    assert "SHARDINV_TIMEOUT=70" in short.remedy
    unequal = patience([300.0, 20.0], [None, "20"], 1.0)
    assert unequal.status == "warning"
    assert "alike on all hosts" in unequal.remedy


def test_memory() -> None:
    assert memory([Memory(0, 2 * GB, 16 * GB)] * 4).status == "ok"
    full = memory([Memory(0, 4 * GB, 16 * GB)] * 4)
    assert full.status == "failed"
    assert "4 ranks together took 16 GB of the host's 16 GB" in full.message
    gpu = memory(
        [Memory(0, GB, 64 * GB, 10 * GB, 80 * GB), Memory(0, GB, 64 * GB, 70 * GB, 80 * GB)]
    )
    assert gpu.status == "warning"
    assert "rank 1 took 70 GB of the GPU's 80 GB" in gpu.message
    assert memory([Memory(0, None, None)]).status == "ok"
    here = Memory.here(0, torch.device("cpu"))
    assert here.installed is None or here.resident is None or 0 < here.resident < here.installed


def test_files(tmp_path: Path) -> None:
    files = wanted_files(Point())
    mine = seen_here(files)
    assert weights(files, [mine, mine]).status == "ok"
    other = {**mine, "network": (17, "0123")}
    differing = weights(files, [mine, other])
    assert differing.status == "failed"
    assert "rank 1 reads another content" in differing.message
    files = wanted_files(Point(network=str(tmp_path / "mine.pt")))
    missing = weights(files, [seen_here(files)])
    assert missing.status == "failed"
    assert "mine.pt: No such file" in missing.message
    assert "ffdnet, drunet" in missing.remedy
    assert set(wanted_files(Point(problem="volume", network="drunet"))) == {"network"}


def _links(*rates: float, hosts: tuple[int, ...] = (0, 0, 0), seconds: float = 1e-4) -> Links:
    ends = ((0, 1), (0, 2), (1, 2))
    pairs = [Pair(two, seconds, rate) for two, rate in zip(ends, rates, strict=True)]
    return Links("gloo", hosts, pairs, seconds, min(rates))


def test_a_slow_pair_is_named() -> None:
    assert communication.bandwidth(_links(1e9, 1e9, 0.9e9)).status == "ok"
    slow = communication.bandwidth(_links(1e9, 1e9, 0.1e9))
    assert slow.status == "warning"
    assert "slowest between ranks 1 and 2 (on one host): 100 MB/s" in slow.message
    # Between hosts all are slower: that is no fault of one.
    across = communication.bandwidth(_links(1e9, 0.1e9, 0.1e9, hosts=(0, 0, 1)))
    assert across.status == "ok"
    assert "ranks 0 and 2 (on two hosts)" in across.message


def test_late_answers() -> None:
    assert communication.latency(_links(1e9, 1e9, 1e9)).status == "ok"
    late = communication.latency(_links(1e9, 1e9, 1e9, seconds=0.02))
    assert late.status == "warning"
    assert "20 ms" in late.message


def test_share_of_communication() -> None:
    links = _links(1e8, 1e8, 1e8, seconds=0.0)
    assert communication.share(links, [1e6] * 3, 2, 1.0).status == "ok"
    much = communication.share(links, [1e8] * 3, 2, 1.0)
    assert much.status == "warning"
    assert much.figures["share"] == pytest.approx(0.5)
    assert "layout: sharded" in much.remedy


@pytest.mark.parametrize("size", [1, 2, 5, 16, 17, 40])
def test_every_rank_is_in_a_pair(size: int) -> None:
    pairs = pairs_to_measure(size)
    assert len(set(pairs)) == len(pairs)
    assert all(0 <= one < other < size for one, other in pairs)
    assert {rank for pair in pairs for rank in pair} == (set(range(size)) if size > 1 else set())
    assert len(pairs) <= max(120, 2 * size)


def test_findings() -> None:
    with pytest.raises(ValueError, match="without a remedy"):
        Finding("a", "failed", {}, "no")
    fine = Finding("a", "ok", {"x": [float("nan")]}, "yes")
    assert fine.record()["figures"] == {"x": [None]}
    assert worst([fine, Finding("b", "warning", {}, "hm", "do")]) == "warning"
    assert worst([]) == "ok"
