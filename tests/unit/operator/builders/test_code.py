"""`spec.code`; the script that clones is run for real, against repositories on this machine."""

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from trimtab.api import JobError
from trimtab_operator.builders.code import CLONE_SCRIPT, CodeParts, code_parts
from trimtab_operator.builders.pods import pod_manifest
from trimtab_operator.builders.roles import resolved_role
from trimtab_operator.constants import ROLES
from trimtab_operator.model.plan import PodPlan
from trimtab_operator.model.resolved import Resolved

Make = Callable[..., Resolved]


def parts(resolved: Resolved) -> CodeParts:
    return code_parts(resolved, resolved_role(resolved, "reward"))


def python_path(resolved: Resolved) -> str:
    paths = set()
    for role in ROLES:
        plan = PodPlan(
            job="sums", job_uid="u", group=role, role=role, replica=0, node=0, incarnation=1, attempt=1
        )
        env = pod_manifest(plan, resolved)["spec"]["containers"][0]["env"]
        paths.add({variable["name"]: variable.get("value") for variable in env}.get("PYTHONPATH"))
    (path,) = paths
    return str(path)


def test_no_code_adds_nothing(make: Make) -> None:
    assert parts(make()) == CodeParts()
    assert python_path(make()) == "None"


def test_code_in_the_image_is_on_the_path_of_every_role(make: Make) -> None:
    assert python_path(make(code={"image": {"path": "/opt/mine"}})) == "/opt/mine"


def test_code_in_a_config_map_is_mounted(make: Make) -> None:
    resolved = make(code={"configMap": {"name": "rewards"}})
    assert python_path(resolved) == "/etc/trimtab/code"
    (volume,), (mount,) = parts(resolved).volumes, parts(resolved).mounts
    assert volume["configMap"] == {"name": "rewards"}
    assert mount == {"name": volume["name"], "mountPath": "/etc/trimtab/code", "readOnly": True}


def test_code_on_a_volume_is_mounted_and_found_below_it(make: Make) -> None:
    resolved = make(
        volumes=[{"name": "code", "nfs": {"server": "s", "path": "/"}}],
        code={"volume": {"name": "code", "path": "team/src"}},
    )
    assert python_path(resolved) == "/etc/trimtab/code/team/src"
    assert parts(resolved).mounts[0]["name"] == "code"


@pytest.mark.parametrize(
    "code", [{"volume": {"name": "v", "path": "../x"}}, {"git": {"url": "https://h/r", "path": "/x"}}]
)
def test_code_outside_of_its_volume_is_refused(make: Make, code: dict[str, Any]) -> None:
    with pytest.raises(JobError, match="inside"):
        make(volumes=[{"name": "v", "nfs": {"server": "s", "path": "/"}}], code=code)


def test_code_comes_before_the_jobs_own_python_path(make: Make) -> None:
    resolved = make(
        code={"image": {"path": "/opt/mine"}},
        roles={
            role: {"env": [{"name": "PYTHONPATH", "value": "/opt/other"}]}
            for role in ("coordinator", "actor", "rollout", "reward")
        },
    )
    assert python_path(resolved) == "/opt/mine:/opt/other"


def test_git_code_is_cloned_by_a_restricted_init_container(make: Make) -> None:
    resolved = make(
        settings={"caBundleConfigMap": "ca", "proxy": {"https": "http://p:1"}},
        code={
            "git": {"url": "https://git.test/r.git", "revision": "v1", "path": "src", "secretName": "token"}
        },
        roles__reward={"resources": {"limits": {"cpu": "2", "example.com/fpga": "1"}}},
        roles__coordinator={"image": "without-git:1"},
    )
    assert python_path(resolved) == "/etc/trimtab/code/repository/src"
    (container,) = parts(resolved).init_containers
    assert container["image"] == "registry.test/control:1"
    assert container["resources"] == {"limits": {"cpu": "2"}}
    assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert container["securityContext"]["readOnlyRootFilesystem"] is True
    env = {variable["name"]: variable["value"] for variable in container["env"]}
    assert (env["URL"], env["REVISION"]) == ("https://git.test/r.git", "v1")
    assert env["HTTPS_PROXY"] == "http://p:1"
    assert env["GIT_SSL_CAINFO"] == "/etc/trimtab/ca/ca.crt"
    assert "git.test" not in container["command"][-1]
    mounts = {mount["mountPath"]: mount for mount in container["volumeMounts"]}
    assert mounts["/etc/trimtab/git"]["readOnly"] is True
    assert not mounts["/etc/trimtab/code"].get("readOnly")
    assert "/etc/trimtab/tls" not in mounts
    (mount,) = parts(resolved).mounts
    assert mount["readOnly"] is True


def test_git_code_of_a_public_repository_mounts_no_secret(make: Make) -> None:
    (container,) = parts(make(code={"git": {"url": "https://git.test/r.git"}})).init_containers
    assert "/etc/trimtab/git" not in {mount["mountPath"] for mount in container["volumeMounts"]}


# The script


def git(folder: Path, *arguments: str) -> str:
    identity = ["-c", "user.name=t", "-c", "user.email=t@t.test", "-c", "init.defaultBranch=main"]
    result = subprocess.run(
        ["git", *identity, *arguments], cwd=folder, capture_output=True, text=True, check=True, timeout=30
    )
    return result.stdout.strip()


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """Two commits: `old` is tagged, the second is on main and on `side`."""
    if shutil.which("git") is None:
        pytest.skip("git is not installed")
    folder = tmp_path / "origin"
    folder.mkdir()
    git(folder, "init", "--quiet")
    for text in ("one", "two"):
        (folder / "code.py").write_text(text)
        git(folder, "add", "code.py")
        git(folder, "commit", "--quiet", "-m", text)
        if text == "one":
            git(folder, "tag", "old")
    git(folder, "branch", "side")
    return folder


def clone(repository: Path, revision: str, *, secret: Path | None = None) -> subprocess.CompletedProcess[str]:
    folder = repository.parent / "clone"
    environ = {
        "PATH": os.environ["PATH"],
        "HOME": str(repository.parent),
        "URL": f"file://{repository}",
        "REVISION": revision,
        "FOLDER": str(folder),
        "SECRET": str(secret or repository.parent / "none"),
        "GIT_TERMINAL_PROMPT": "0",
    }
    return subprocess.run(
        ["sh", "-c", CLONE_SCRIPT], env=environ, capture_output=True, text=True, check=False, timeout=60
    )


@pytest.mark.parametrize(
    ("revision", "text"),
    [("HEAD", "two"), ("main", "two"), ("side", "two"), ("old", "one"), ("commit", "one"), ("short", "one")],
)
def test_clone_takes_a_branch_a_tag_or_a_commit(repository: Path, revision: str, text: str) -> None:
    commit = git(repository, "rev-parse", "old")
    names = {"commit": commit, "short": commit[:10]}
    result = clone(repository, names.get(revision, revision))
    assert result.returncode == 0, result.stderr
    assert (repository.parent / "clone" / "code.py").read_text() == text
    commit = git(repository, "rev-parse", "old" if text == "one" else "main")
    assert f"code: commit {commit}" in result.stdout


def test_clone_again_over_what_is_there_is_the_same(repository: Path) -> None:
    assert clone(repository, "old").returncode == 0
    assert clone(repository, "main").returncode == 0
    assert (repository.parent / "clone" / "code.py").read_text() == "two"


def test_clone_of_an_unknown_revision_fails_and_names_it(repository: Path) -> None:
    result = clone(repository, "nowhere")
    assert result.returncode != 0
    assert "nowhere" in result.stderr


def test_clone_takes_no_revision_for_an_option(repository: Path) -> None:
    marker = repository.parent / "run"
    result = clone(repository, f"--upload-pack=touch {marker};")
    assert result.returncode != 0
    assert not marker.exists()


def test_clone_gives_git_the_credentials_of_the_secret(repository: Path, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.mkdir()
    (secret / "username").write_text("robot\n")
    (secret / "password").write_text("a\\nb%s'\"$x")
    probe = (
        CLONE_SCRIPT.partition("git init")[0] + 'printf "protocol=https\\nhost=h\\n\\n" | git credential fill'
    )
    result = subprocess.run(
        ["sh", "-c", probe],
        env={
            "PATH": os.environ["PATH"],
            "HOME": str(tmp_path),
            "SECRET": str(secret),
            "GIT_TERMINAL_PROMPT": "0",
        },
        capture_output=True,
        text=True,
        check=True,
        timeout=30,
    )
    assert "username=robot" in result.stdout.splitlines()
    assert "password=a\\nb%s'\"$x" in result.stdout.splitlines()


def test_clone_over_ssh_trusts_the_hosts_of_the_secret_alone(repository: Path, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.mkdir()
    (secret / "ssh-privatekey").write_text("key")
    probe = CLONE_SCRIPT.partition("git init")[0] + 'echo "$GIT_SSH_COMMAND"'
    result = subprocess.run(
        ["sh", "-c", probe],
        env={"SECRET": str(secret)},
        capture_output=True,
        text=True,
        check=True,
        timeout=30,
    )
    assert f"-i {secret}/ssh-privatekey" in result.stdout
    assert f"UserKnownHostsFile={secret}/known_hosts" in result.stdout
    assert "StrictHostKeyChecking=yes" in result.stdout
