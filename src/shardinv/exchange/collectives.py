"""Operations on plain tensors, booked in the ledger, blind to autograd.

On NCCL they are the library's own collectives. On gloo they are made of sends, which move a large
gather or sum in half the time of gloo's own ring (and a sum in the same order of ranks on every
run); gloo's own serve small messages.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from math import prod

import torch
import torch.distributed as dist

from shardinv.exchange.agreement import agree
from shardinv.exchange.communicator import Communicator, Stopwatch
from shardinv.exchange.sends import post, wait_for
from shardinv.exchange.tensors import TensorSpec, as_bytes, as_real, crop, plain
from shardinv.geometry import Layout, balanced_cuts

SMALL = 32 * 1024
"""Bytes below which gloo's own all-reduce is used: latency, not bandwidth, decides there."""

# Newer versions of torch deprecate the older of the two names.
_all_gather_single = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor


def all_reduce(comm: Communicator, tensor: torch.Tensor, op: str = "sum") -> torch.Tensor:
    """Combine a tensor of every rank, in place where it is contiguous.

    Parameters
    ----------
    comm
        The group.
    tensor
        Same shape and type on every rank. Overwritten when contiguous.
    op
        ``"sum"``, ``"mean"``, ``"max"`` or ``"min"``.

    Returns
    -------
    torch.Tensor
        The combination, the same to the last bit on every rank.
    """
    if op not in _REDUCTIONS:
        raise ValueError(f"op must be one of {sorted(_REDUCTIONS)}, got {op!r}")
    if op in ("max", "min") and tensor.is_complex():
        raise TypeError(f"complex numbers have no order: the {op} of {tensor.dtype} is undefined")
    if op == "mean" and not (tensor.is_floating_point() or tensor.is_complex()):
        raise TypeError(f"a mean needs floating-point numbers, got {tensor.dtype}; use op='sum'")
    result = plain(tensor)
    if comm.alone:
        return result
    flat = as_real(result).view(-1)
    nbytes = flat.numel() * flat.element_size()
    with comm.booked("all_reduce", 2 * (comm.size - 1) * nbytes // comm.size) as watch:
        if comm.backend == "gloo" and op in ("sum", "mean") and nbytes > SMALL:
            _sum_by_sends(comm, flat, watch)
        else:
            wired = flat.to(comm.wire)
            work = dist.all_reduce(wired, _REDUCTIONS[op], group=comm.group, async_op=True)
            _wait(work, watch)
            if wired is not flat:
                flat.copy_(wired)
    if op == "mean":
        result.div_(comm.size)
    return result


_REDUCTIONS = {
    # A mean is a sum divided afterwards: gloo has no average.
    "sum": dist.ReduceOp.SUM,
    "mean": dist.ReduceOp.SUM,
    "max": dist.ReduceOp.MAX,
    "min": dist.ReduceOp.MIN,
}


def _sum_by_sends(comm: Communicator, flat: torch.Tensor, watch: Stopwatch) -> None:
    """Sum in two rounds: every rank sums one slice of all, then sends its sum to all."""
    cuts = balanced_cuts(flat.numel(), comm.size)
    slices = [slice(a, b) for a, b in pairwise(cuts)]
    wired = flat.to(comm.wire)
    mine = wired[slices[comm.rank]]
    others = [rank for rank in range(comm.size) if rank != comm.rank]
    arrived = {rank: torch.empty_like(mine) for rank in others}
    first = post(
        comm,
        [(rank, wired[slices[rank]]) for rank in others],
        [(rank, arrived[rank]) for rank in others],
    )
    watch.issued()
    wait_for(first)
    # In the order of the ranks, whoever sums: the result is the same on every run.
    total = torch.zeros_like(mine)
    for rank in range(comm.size):
        total += mine if rank == comm.rank else arrived[rank]
    mine.copy_(total)
    wait_for(
        post(
            comm,
            [(rank, total) for rank in others],
            [(rank, wired[slices[rank]]) for rank in others],
        )
    )
    if wired is not flat:
        flat.copy_(wired)


def gather_boxes(
    comm: Communicator, whole: torch.Tensor, layout: Layout, operation: str = "gather"
) -> torch.Tensor:
    """Complete a tensor of which every rank has filled its own boxes. Each pixel is sent once.

    Parameters
    ----------
    comm
        The group.
    whole
        ``(..., *spatial)``: same shape on every rank; filled in place. Its last axes are those of
        the boxes.
    layout
        The boxes of every rank, disjoint. What lies in none of them is left as it is.
    operation
        Name for the ledger.
    """
    if comm.alone:
        return whole
    ndim = next(box.ndim for boxes in layout for box in boxes)
    lead = whole.shape[: whole.ndim - ndim]
    sizes = [prod(lead) * sum(box.size for box in boxes) for boxes in layout]

    def regions(rank: int) -> list[torch.Tensor]:
        return [crop(whole, box) for box in layout[rank]]

    nbytes = sum(sizes) * whole.element_size() * (comm.size - 1) // comm.size
    with comm.booked(operation, nbytes) as watch:
        packed = _pack(regions(comm.rank), whole.dtype, comm)
        specs = [TensorSpec((n,), whole.dtype) for n in sizes]
        for rank, message in _everyone(comm, packed, specs, watch).items():
            _unpack(message, regions(rank))
    return whole


def gather_tensors(
    comm: Communicator,
    tensors: Sequence[torch.Tensor],
    specs: Sequence[Sequence[TensorSpec]],
) -> list[list[torch.Tensor]]:
    """Bring the tensors of every rank to every rank, of any shapes and types, in one message each.

    Parameters
    ----------
    comm
        The group.
    tensors
        This rank's tensors.
    specs
        Shape and type of every rank's tensors; known beforehand, so no rank has to ask.

    Returns
    -------
    list of list of torch.Tensor
        The tensors of each rank. This rank's are the ones given.
    """
    if comm.alone:
        return [list(tensors)]
    totals = [sum(_padded(spec.nbytes) for spec in own) for own in specs]
    useful = sum(spec.nbytes for own in specs for spec in own)
    with comm.booked("gather", useful * (comm.size - 1) // comm.size) as watch:
        packed = torch.zeros(totals[comm.rank], dtype=torch.uint8, device=comm.wire)
        offset = 0
        for tensor, spec in zip(tensors, specs[comm.rank], strict=True):
            packed[offset : offset + spec.nbytes].copy_(as_bytes(plain(tensor.detach())))
            offset += _padded(spec.nbytes)
        byte_specs = [TensorSpec((n,), torch.uint8) for n in totals]
        messages = _everyone(comm, packed, byte_specs, watch)
        gathered: list[list[torch.Tensor]] = []
        for rank, own in enumerate(specs):
            if rank == comm.rank:
                gathered.append(list(tensors))
                continue
            offset, unpacked = 0, []
            for spec in own:
                part = messages[rank][offset : offset + spec.nbytes]
                unpacked.append(part.view(spec.dtype).view(spec.shape).to(comm.device))
                offset += _padded(spec.nbytes)
            gathered.append(unpacked)
    return gathered


def _padded(nbytes: int) -> int:
    """Bytes a tensor takes in a message of several: each starts where any type may start."""
    return -(-nbytes // 16) * 16


def broadcast(comm: Communicator, tensor: torch.Tensor, source: int = 0) -> torch.Tensor:
    """Give every rank the source's values, in place where the tensor is contiguous."""
    result = plain(tensor)
    if comm.alone or result.numel() == 0:
        return result
    sent = result.numel() * result.element_size() if comm.rank == source else 0
    with comm.booked("broadcast", sent) as watch:
        wired = as_bytes(result).to(comm.wire)
        work = dist.broadcast(wired, comm.peer(source), group=comm.group, async_op=True)
        _wait(work, watch)
        if wired.device != result.device:
            as_bytes(result).copy_(wired)
    return result


def broadcast_tensors(comm: Communicator, tensors: Sequence[torch.Tensor], source: int = 0) -> None:
    """Give every rank the source's values of many tensors, in place, in one message.

    Raises
    ------
    DisagreementError
        If ranks have other numbers of tensors, or of other shapes or types.
    """
    specs = tuple((tuple(tensor.shape), str(tensor.dtype)) for tensor in tensors)
    agree(comm, "the shapes and types of weights", specs, "Build the same object on every rank")
    if comm.alone or not tensors:
        return
    with torch.no_grad():
        packed = torch.cat([as_bytes(plain(tensor.detach())) for tensor in tensors])
        packed = broadcast(comm, packed, source)
        offset = 0
        for tensor in tensors:
            nbytes = tensor.numel() * tensor.element_size()
            # A copy, since the values of the next type need not start at a multiple of its size.
            part = packed[offset : offset + nbytes].clone()
            tensor.copy_(part.view(tensor.dtype).view(tensor.shape))
            offset += nbytes


def barrier(comm: Communicator) -> None:
    """Wait until every rank is here."""
    if comm.alone:
        return
    with comm.booked("barrier", 0) as watch:
        token = torch.zeros(1, device=comm.wire)
        work = dist.all_reduce(token, group=comm.group, async_op=True)
        _wait(work, watch)
        token.item()


def _everyone(
    comm: Communicator, packed: torch.Tensor, specs: Sequence[TensorSpec], watch: Stopwatch
) -> dict[int, torch.Tensor]:
    """Send one flat message to every rank; returns the other ranks' messages."""
    others = [rank for rank in range(comm.size) if rank != comm.rank]
    if comm.backend == "nccl":
        longest = _padded(max(1, *(spec.nbytes for spec in specs)))
        padded = torch.zeros(longest, dtype=torch.uint8, device=packed.device)
        padded[: packed.nbytes] = as_bytes(packed)
        stacked = padded.new_empty(comm.size * longest)
        work = _all_gather_single(stacked, padded, group=comm.group, async_op=True)
        _wait(work, watch)
        rows = stacked.view(comm.size, longest)
        return {rank: rows[rank, : specs[rank].nbytes].view(specs[rank].dtype) for rank in others}
    arrived = {rank: specs[rank].empty(comm.wire) for rank in others}
    sends = [(rank, packed) for rank in others] if packed.numel() else []
    receives = [(rank, message) for rank, message in arrived.items() if message.numel()]
    works = post(comm, sends, receives)
    watch.issued()
    wait_for(works)
    return arrived


def _pack(regions: Sequence[torch.Tensor], dtype: torch.dtype, comm: Communicator) -> torch.Tensor:
    """Lay regions one after the other in a flat message, where the backend can send it from."""
    if len(regions) == 1 and regions[0].is_contiguous() and regions[0].device == comm.wire:
        return plain(regions[0]).reshape(-1)
    message = torch.empty(sum(r.numel() for r in regions), dtype=dtype, device=comm.wire)
    offset = 0
    for region in regions:
        message[offset : offset + region.numel()].view(region.shape).copy_(region)
        offset += region.numel()
    return message


def _unpack(message: torch.Tensor, regions: Sequence[torch.Tensor]) -> None:
    offset = 0
    for region in regions:
        region.copy_(message[offset : offset + region.numel()].view(region.shape))
        offset += region.numel()


def _wait(work: dist.Work | None, watch: Stopwatch) -> None:
    watch.issued()
    if work is not None:
        work.wait()
