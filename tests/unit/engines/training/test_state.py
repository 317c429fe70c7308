"""What becomes of a checkpoint whose files are not what was written."""

import enum
import io
import pickle
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch.distributed.checkpoint.metadata import BytesStorageMetadata

from trimtab.engines.training import state
from trimtab.engines.training.reader import SafeReader
from trimtab.errors import TrimtabError, UserError


@pytest.fixture(autouse=True)
def world() -> Iterator[None]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    path = tmp_path / "step-00000010" / "actor"
    record = state.ActorRecord(applied_step=10, optimizer_steps=10, world_size=1)
    tensors = {"w": torch.arange(1000.0)}
    state.save(path, parameters=tensors, optimizer={"step.w": torch.ones(())}, record=record, rank=0)
    return path


def load(path: Path) -> torch.Tensor:
    weight = torch.zeros(1000)
    state.load(path, parameters={"w": weight}, optimizer={"step.w": torch.zeros(())}, rank=0)
    return weight


def test_state_comes_back(saved: Path) -> None:
    assert torch.equal(load(saved), torch.arange(1000.0))


def test_damaged_checkpoint_is_named_with_what_to_do_about_it(saved: Path) -> None:
    [file] = saved.glob("*.distcp")
    file.write_bytes(b"\x00" * file.stat().st_size)  # as long as before: its size does not give it away
    with pytest.raises(UserError, match=r"checkpoint\.uri: .*step-00000010 is damaged .* move it away"):
        load(saved)


def test_checkpoint_whose_files_cannot_be_opened_may_be_read_another_time(saved: Path) -> None:
    [file] = saved.glob("*.distcp")
    file.unlink()
    with pytest.raises(TrimtabError, match="could not be read") as caught:
        load(saved)
    assert not isinstance(caught.value, UserError)


class OldPickler(pickle.Pickler):
    """Writes the members of enumerations as Python before 3.11.4 does."""

    def reducer_override(self, thing: object) -> object:
        return (getattr, (type(thing), thing.name)) if isinstance(thing, enum.Enum) else NotImplemented


def test_list_of_tensors_written_by_an_early_python_3_11_is_read(saved: Path) -> None:
    path = saved / ".metadata"
    written = io.BytesIO()
    OldPickler(written).dump(SafeReader(saved).read_metadata())
    assert b"getattr" in written.getvalue()
    path.write_bytes(written.getvalue())
    assert torch.equal(load(saved), torch.arange(1000.0))


def test_attribute_of_anything_but_torchs_own_enumeration_is_refused(saved: Path) -> None:
    (saved / ".metadata").write_bytes(b"cbuiltins\ngetattr\n(ctorch\nSize\nV__class__\ntR.")
    with pytest.raises(UserError, match=r"it asks <class 'torch\.Size'> for '__class__'"):
        load(saved)


class Payload:
    """What a pickle of a stranger's would do."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return Path.touch, (self.marker,)  # type: ignore[return-value]


def test_list_of_tensors_that_would_run_something_is_refused(saved: Path, tmp_path: Path) -> None:
    marker = tmp_path / "it ran"
    (saved / ".metadata").write_bytes(pickle.dumps(Payload(marker)))
    with pytest.raises(
        UserError, match=r"\.metadata is damaged, or not of a checkpoint of Trimtab \(it names"
    ):
        load(saved)
    assert not marker.exists()


def test_entry_that_torch_would_unpickle_is_refused(saved: Path) -> None:
    listed = SafeReader(saved).read_metadata()
    listed.state_dict_metadata["parameter.w"] = BytesStorageMetadata()
    (saved / ".metadata").write_bytes(pickle.dumps(listed))
    with pytest.raises(UserError, match=r"it names torch\.distributed.*\.BytesStorageMetadata"):
        load(saved)


@pytest.mark.parametrize("content", [b"", b"\x00" * 64, pickle.dumps(["a", "list"])])
def test_list_of_tensors_that_is_none_is_refused(saved: Path, content: bytes) -> None:
    (saved / ".metadata").write_bytes(content)
    with pytest.raises(UserError, match=r"checkpoint\.uri: .*\.metadata"):
        load(saved)
