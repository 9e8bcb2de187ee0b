"""Tensors to a folder and back, through ``torch.distributed.checkpoint``.

Its failures become errors of this package. Imported when first used: it takes torch a second or two
to load.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save

from shardinv.checkpoint.errors import CheckpointError
from shardinv.checkpoint.parts import Part
from shardinv.checkpoint.planners import PartsLoader, PartsSaver
from shardinv.exchange import Communicator, RankError


def write_parts(comm: Communicator, folder: Path, parts: Sequence[Part]) -> None:
    """Write the parts of all ranks to an empty folder. Returns when all are on the disk.

    Raises
    ------
    CheckpointError
        On every rank, if one could not write.
    RankError
        If a rank is gone, or did not answer within the group's time-out.
    """
    with _failures(comm, f"writing a checkpoint to {folder.parent}"):
        save(
            {},
            storage_writer=FileSystemWriter(folder),
            planner=PartsSaver(parts),
            process_group=comm.group,
            no_dist=comm.alone,
        )


def read_parts(comm: Communicator, folder: Path, parts: Sequence[Part]) -> None:
    """Fill this rank's parts from what all ranks once wrote.

    Raises
    ------
    CheckpointError
        On every rank, if one could not read.
    RankError
        If a rank is gone, or did not answer within the group's time-out.
    """
    with _failures(comm, f"reading {folder}"):
        load(
            {},
            storage_reader=FileSystemReader(folder),
            planner=PartsLoader(parts),
            process_group=comm.group,
            no_dist=comm.alone,
        )


@contextmanager
def _failures(comm: Communicator, what: str) -> Iterator[None]:
    try:
        with warnings.catch_warnings():
            # That a single process has no group is no surprise.
            warnings.simplefilter("ignore")
            yield
    except CheckpointException as error:
        # It is a BaseException: left alone, it would pass every `except Exception`.
        causes = [
            f"rank {rank}: {cause if isinstance(cause, CheckpointError) else repr(cause)}"
            for rank, (cause, _) in error.failures.items()
        ]
        raise CheckpointError(f"{what} failed: {'; '.join(causes)}") from error
    except RuntimeError as error:
        if comm.alone or isinstance(error, RankError):
            raise
        raise comm.failed(what, error) from error
