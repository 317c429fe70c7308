"""Cores that a container's quota pays for, by the files of both versions of cgroups."""

import os
from pathlib import Path

import pytest

from trimtab import cores

V1_QUOTA, V1_PERIOD = "cpu/cpu.cfs_quota_us", "cpu/cpu.cfs_period_us"


@pytest.mark.parametrize(
    ("files", "usable"),
    [
        pytest.param({}, 8, id="no cgroup"),
        pytest.param({"cpu.max": "max 100000"}, 8, id="version 2 without a limit"),
        pytest.param({"cpu.max": "200000 100000"}, 2, id="version 2 with two cores"),
        pytest.param({"cpu.max": "250000 100000"}, 2, id="a part of a core is not a thread"),
        pytest.param({"cpu.max": "50000 100000"}, 1, id="one thread at least"),
        pytest.param({"cpu.max": "6400000 100000"}, 8, id="a quota beyond the machine"),
        pytest.param({V1_QUOTA: "-1", V1_PERIOD: "100000"}, 8, id="version 1 without a limit"),
        pytest.param({V1_QUOTA: "300000", V1_PERIOD: "100000"}, 3, id="version 1 with three cores"),
    ],
)
def test_usable_cores_are_those_that_the_quota_pays_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files: dict[str, str], usable: int
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)))
    (tmp_path / "cpu").mkdir()
    for name, text in files.items():
        (tmp_path / name).write_text(f"{text}\n")
    assert cores.num_usable_cores(tmp_path) == usable
