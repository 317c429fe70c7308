"""Which device a rank of the actor takes."""

from pathlib import Path
from typing import Any

import pytest
import torch
from tests.unit.small_job import small_job

from trimtab.api import ResolvedJob
from trimtab.errors import UserError
from trimtab.roles.actor import choose_device
from trimtab.roles.environment import ACTOR, WorkerEnvironment


def resolved(folder: Path, **actor: Any) -> ResolvedJob:
    return small_job(folder, roles={"actor": actor})


def environment(folder: Path, local_rank: int) -> WorkerEnvironment:
    return WorkerEnvironment(
        job_path=folder / "resolved.json",
        role=ACTOR,
        replica=0,
        node=0,
        incarnation=1,
        coordinator="127.0.0.1:1",
        host="127.0.0.1",
        rank=local_rank,
        local_rank=local_rank,
        world_size=local_rank + 1,
    )


def test_rank_without_gpus_in_the_job_is_on_the_cpu(tmp_path: Path) -> None:
    assert choose_device(environment(tmp_path, 0), resolved(tmp_path)) == torch.device("cpu")


def test_rank_whose_gpu_is_not_there_is_the_user_s_mistake_and_names_the_field(tmp_path: Path) -> None:
    beyond = torch.cuda.device_count()
    job = resolved(tmp_path, gpusPerNode=beyond + 1)
    with pytest.raises(UserError, match=r"spec\.roles\.actor\.gpusPerNode: .* shows \d+; lower the number"):
        choose_device(environment(tmp_path, beyond), job)
