"""What an actor keeps in a checkpoint: torch.distributed.checkpoint files that any number of ranks reads.

Called by the engine (collectively, on every rank) and by `trimtab export` (alone, without a group).

    <checkpoint>/actor/*.distcp, .metadata   parameters, moments, random state per rank
    <checkpoint>/actor/actor.json            counters, world size; written last, by rank 0
    <checkpoint>/actor/model/                configuration and tokenizer in Hugging Face layout, no weights
"""

import json
import warnings
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemWriter
from torch.distributed.checkpoint.planner import SavePlan, SavePlanner
from torch.distributed.checkpoint.state_dict_loader import load as load_state
from torch.distributed.checkpoint.state_dict_saver import save as save_state
from torch.distributed.checkpoint.storage import WriteResult
from torch.futures import Future

from trimtab.checkpoint.errors import storage_error, storage_errors
from trimtab.checkpoint.manifest import write_atomically
from trimtab.engines.training.reader import SafeReader
from trimtab.errors import TrimtabError, UserError

RECORD = "actor.json"
MODEL_FILES = "model"
_PARAMETER = "parameter."
_RANDOM = "random.{}"


@dataclass(frozen=True)
class ActorRecord:
    """The numbers beside the tensors."""

    applied_step: int
    optimizer_steps: int
    world_size: int

    @classmethod
    def read(cls, path: Path) -> "ActorRecord":
        """Read the record of a checkpoint's actor folder."""
        try:
            return cls(**json.loads((path / RECORD).read_text()))
        except (OSError, json.JSONDecodeError, TypeError) as error:
            raise UserError(f"checkpoint.uri: {path} holds no actor state ({error})") from error


def save(
    path: Path,
    *,
    parameters: Mapping[str, Tensor],
    optimizer: Mapping[str, Tensor],
    record: ActorRecord,
    rank: int,
) -> None:
    """Write this rank's part; returns once all ranks have written theirs."""
    tensors = {f"{_PARAMETER}{name}": value for name, value in parameters.items()}
    tensors |= {**optimizer, _RANDOM.format(rank): random_state()}
    with storage_errors(path):
        path.mkdir(parents=True, exist_ok=True)
    try:
        save_state(tensors, storage_writer=_Writer(path))
    except CheckpointException as error:
        raise _said_plainly(error, path) from error
    if rank == 0:
        with storage_errors(path):
            write_atomically(path / RECORD, json.dumps(asdict(record)))
    if dist.is_initialized():
        dist.barrier()


def load(
    path: Path, *, parameters: Mapping[str, Tensor], optimizer: Mapping[str, Tensor] | None, rank: int
) -> ActorRecord:
    """Fill the tensors in place. Random state is taken over where this rank had one.

    Without an optimiser only the parameters are read; without a process group, in this process alone.
    """
    record = ActorRecord.read(path)
    reader = SafeReader(path)
    stored = reader.read_metadata().state_dict_metadata
    tensors = {f"{_PARAMETER}{name}": value for name, value in parameters.items()}
    tensors |= optimizer or {}
    unknown = sorted(tensors.keys() - stored.keys())
    if unknown:
        raise UserError(
            f"checkpoint.uri: {path} lacks {unknown[0]} and {len(unknown) - 1} more; it is of another model"
        )
    key = _RANDOM.format(rank)
    if optimizer is not None and record.world_size == _world_size():
        tensors[key] = random_state()
    with warnings.catch_warnings():
        # Reading alone is what `trimtab export` means to do.
        warnings.filterwarnings("ignore", message="torch.distributed is disabled", category=UserWarning)
        try:
            load_state(tensors, storage_reader=reader, no_dist=not dist.is_initialized())
        except CheckpointException as error:
            raise _unreadable(error, path) from error
    if key in tensors:
        restore_random_state(tensors[key])
    return record


def random_state() -> Tensor:
    """The generators' states, as bytes: the CPU's, then the current GPU's where there is one."""
    states = [torch.get_rng_state()]
    if torch.cuda.is_available():
        states.append(torch.cuda.get_rng_state())
    return torch.cat(states)


def restore_random_state(state: Tensor) -> None:
    """Inverse of `random_state`."""
    num_cpu = torch.get_rng_state().numel()
    torch.set_rng_state(state[:num_cpu].contiguous())
    if torch.cuda.is_available() and state.numel() > num_cpu:
        torch.cuda.set_rng_state(state[num_cpu:].contiguous())


def _world_size() -> int:
    return dist.get_world_size() if dist.is_initialized() else 1


class _Writer(FileSystemWriter):
    """torch.save hides what the operating system said behind a complaint of its own: say it again.

    The error goes to the other ranks by value, and so without what it was raised from.
    """

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        """See the base class."""
        try:
            return super().write_data(plan, planner)
        except RuntimeError as error:
            behind: BaseException | None = error
            while behind is not None:
                if isinstance(behind, OSError):
                    raise behind from error
                behind = behind.__cause__ or behind.__context__
            raise


def _unreadable(error: CheckpointException, path: Path) -> TrimtabError:
    """What the system said may pass; what is wrong with the files stays, however often they are read."""
    for cause, _ in error.failures.values():
        if isinstance(cause, OSError):
            return TrimtabError(f"the checkpoint {path} could not be read: {cause}")
    kinds = ", ".join(f"rank {rank}: {type(cause).__name__}" for rank, (cause, _) in error.failures.items())
    return UserError(
        f"checkpoint.uri: {path.parent} is damaged ({kinds}); move it away, and the job goes on from the one "
        "before"
    )


def _said_plainly(error: CheckpointException, path: Path) -> TrimtabError:
    """A full disk on any rank as one; torch's own is a BaseException, which nothing above expects."""
    for cause, _ in error.failures.values():
        translated = storage_error(cause, path) if isinstance(cause, OSError) else None
        if translated is not None:
            return translated
    ranks = ", ".join(f"rank {rank}: {cause}" for rank, (cause, _) in error.failures.items())
    return TrimtabError(f"the checkpoint {path} could not be written: {ranks}")
