"""Checks in every backward pass that replicated results have the same cotangent on every rank.

A loss that one rank alone computes, or that ranks compute from different values, would give
gradients that belong to no loss. Each rank keeps a small digest of the cotangents that enter the
graph where a replicated tensor was made; at the end of the pass the digests are compared, in one
message of a few hundred bytes.
"""

from __future__ import annotations

import torch
from torch.autograd.variable import Variable

from shardinv.exchange.agreement import publish
from shardinv.exchange.collectives import all_reduce
from shardinv.exchange.communicator import Communicator
from shardinv.exchange.errors import DisagreementError

_SAMPLES = 16
_TOLERANCE = 1e-2
"""Of a cotangent's norm: above the noise of half precision, far below any real difference."""


def note(comm: Communicator, *cotangents: torch.Tensor) -> None:
    """Take a digest of replicated cotangents; at the end of this backward pass it is compared."""
    if comm.alone:
        return
    for cotangent in cotangents:
        if not (cotangent.is_floating_point() or cotangent.is_complex()):
            continue  # of integers beside the values; autograd makes it up
        digest = _digest(cotangent.detach())
        noted = comm.noted
        comm.noted = digest if noted is None else noted + digest
    task = torch._C._current_graph_task_id()
    if task not in comm.checking:
        comm.checking.add(task)
        Variable._execution_engine.queue_callback(lambda: _compare(comm, task))


def _digest(cotangent: torch.Tensor) -> torch.Tensor:
    """How many there are, the norm, and values at a few places."""
    plain = cotangent.resolve_conj().resolve_neg()
    values = torch.view_as_real(plain) if plain.is_complex() else plain
    flat = values.reshape(-1)
    digest = torch.zeros(2 + _SAMPLES, dtype=torch.float64, device=flat.device)
    digest[0] = 1
    if flat.numel():
        digest[1] = torch.linalg.vector_norm(
            flat, dtype=torch.promote_types(flat.dtype, torch.float32)
        )
        stride = -(-flat.numel() // _SAMPLES)
        samples = flat[stride // 2 :: stride][:_SAMPLES]
        digest[2 : 2 + samples.numel()] = samples
    return digest


def _compare(comm: Communicator, task: int) -> None:
    comm.checking.discard(task)
    digest, comm.noted = comm.noted, None
    if digest is None:
        return
    with comm.ledger.block("agreement (backward)"):
        # The largest and the smallest of all ranks, in one reduction.
        ends = all_reduce(comm, torch.cat([digest, -digest]), "max")
    spread = ends[: digest.numel()] + ends[digest.numel() :]
    if not bool((spread > _TOLERANCE * ends[1]).any()):  # also where numbers overflow
        return
    norms = publish(comm, "the norms of gradients", float(digest[1]))
    told = "; ".join(f"rank {rank}: {norm:.4g}" for rank, norm in enumerate(norms))
    raise DisagreementError(
        "ranks disagree on the gradient that enters a distributed block, so they have different "
        f"losses (norms of it, {told}). What every rank holds has one loss: compute it on every "
        "rank, from the same values and with the same random draws; don't let one rank alone "
        "compute it, nor divide it by the number of ranks"
    )
