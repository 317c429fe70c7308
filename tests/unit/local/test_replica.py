"""What the launcher says where it cannot start a replica."""

import re
from pathlib import Path

import pytest

from trimtab.errors import UserError
from trimtab.local.replica import RunningReplica
from trimtab.roles.environment import PodEnvironment


async def test_log_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    env = PodEnvironment(
        job_path=tmp_path / "resolved.json",
        role="reward",
        replica=0,
        node=0,
        incarnation=1,
        coordinator="127.0.0.1:1",
        log_dir=tmp_path / "logs",  # is not there
        termination_log=tmp_path / "termination",
    )
    named = rf"cannot write {re.escape(str(tmp_path))}/logs/reward-0-0\.log: .* another --run-dir"
    with pytest.raises(UserError, match=named):
        await RunningReplica([(env, {})], ["true"]).run()
