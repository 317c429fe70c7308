"""`spec.code` in a pod: where the user's Python is mounted, and how it gets there."""

import posixpath
from dataclasses import dataclass
from typing import Any, Final

from trimtab.api.model import GitCode
from trimtab_operator.builders.env import network_env
from trimtab_operator.builders.resources import container_resources, plain_resources
from trimtab_operator.builders.roles import Role, resolved_role
from trimtab_operator.builders.security import container_security_context, secret_mode
from trimtab_operator.builders.volumes import TMP_MOUNT, outward_mounts
from trimtab_operator.constants import CODE_MOUNT, COORDINATOR
from trimtab_operator.model.resolved import Resolved

CLONE_CONTAINER: Final = "trimtab-code"
CODE: Final = "trimtab-code"
GIT: Final = "trimtab-git"
GIT_MOUNT: Final = "/etc/trimtab/git"
CLONE_FOLDER: Final = f"{CODE_MOUNT}/repository"
"""In a folder of its own: git refuses one that belongs to somebody else, as a volume's root does."""

CLONE_SCRIPT: Final = r"""
set -eu
if [ -f "$SECRET/ssh-privatekey" ]; then
  export GIT_SSH_COMMAND="ssh -i $SECRET/ssh-privatekey -o IdentitiesOnly=yes -o BatchMode=yes \
-o StrictHostKeyChecking=yes -o UserKnownHostsFile=$SECRET/known_hosts"
elif [ -f "$SECRET/password" ]; then
  export GIT_CONFIG_COUNT=1 GIT_CONFIG_KEY_0=credential.helper
  export GIT_CONFIG_VALUE_0='!f() {
    test "$1" = get || exit 0
    if test -f "$SECRET/username"; then printf "username=%s\n" "$(cat "$SECRET/username")"
    else echo username=git; fi
    printf "password=%s\n" "$(cat "$SECRET/password")"; }; f'
fi
git init --quiet "$FOLDER"
cd "$FOLDER"
if timeout 600 git fetch --quiet --depth 1 -- "$URL" "$REVISION"; then
  git checkout --quiet --force --detach FETCH_HEAD
else
  echo "$REVISION cannot be fetched alone: fetching all of the repository" >&2
  timeout 600 git fetch --quiet --tags -- "$URL" "+refs/heads/*:refs/remotes/origin/*"
  git checkout --quiet --force --detach "$REVISION" --
fi
git log -1 --format="code: commit %H of %cI"
""".strip()
"""A branch, tag or commit alone where the server allows it, else everything: some serve no single commit.

git and ssh read the credentials from the mounted Secret themselves; they stand in no argument and no log.
"""


@dataclass(frozen=True, kw_only=True)
class CodeParts:
    """What a pod has for the user's code."""

    python_path: str | None = None
    volumes: tuple[dict[str, Any], ...] = ()
    mounts: tuple[dict[str, Any], ...] = ()
    """In the main container."""
    init_containers: tuple[dict[str, Any], ...] = ()


def code_parts(resolved: Resolved, role: Role) -> CodeParts:
    """The parts for `spec.code`; `path` (of a laptop) was refused when the job was resolved."""
    code = resolved.resolved_job.job.spec.code
    if code is None:
        return CodeParts()
    if code.image is not None:
        return CodeParts(python_path=code.image.path)
    if code.config_map is not None:
        volume = {"name": CODE, "configMap": {"name": code.config_map.name}}
        return CodeParts(python_path=CODE_MOUNT, volumes=(volume,), mounts=(_mount(CODE),))
    if code.volume is not None:
        folder = _below(CODE_MOUNT, code.volume.path)
        return CodeParts(python_path=folder, mounts=(_mount(code.volume.name),))
    assert code.git is not None, "a local path is refused when the job is resolved"
    return CodeParts(
        python_path=_below(CLONE_FOLDER, code.git.path),
        volumes=({"name": CODE, "emptyDir": {}}, *_secret_volumes(resolved, code.git)),
        mounts=(_mount(CODE),),
        init_containers=(_clone_container(resolved, role, code.git),),
    )


def _clone_container(resolved: Resolved, role: Role, git: GitCode) -> dict[str, Any]:
    """Clones with the control image, the platform's by preference: a job's own may have no git."""
    control = resolved_role(resolved, COORDINATOR)
    env = {
        "URL": git.url,
        "REVISION": git.revision,
        "FOLDER": CLONE_FOLDER,
        "SECRET": GIT_MOUNT,
        "HOME": TMP_MOUNT,
        "GIT_TERMINAL_PROMPT": "0",
        # Ends a transfer that stands still for a minute.
        "GIT_HTTP_LOW_SPEED_LIMIT": "1000",
        "GIT_HTTP_LOW_SPEED_TIME": "60",
    }
    secret = {"name": GIT, "mountPath": GIT_MOUNT, "readOnly": True}
    container: dict[str, Any] = {
        "name": CLONE_CONTAINER,
        "image": control.defaults.image or control.image,
        "command": ["sh", "-c", CLONE_SCRIPT],
        "env": [{"name": name, "value": value} for name, value in env.items()] + network_env(resolved),
        "resources": plain_resources(container_resources(resolved.resolved_job.job.spec, role)),
        "securityContext": container_security_context(),
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": [
            {"name": CODE, "mountPath": CODE_MOUNT},
            *([secret] if git.secret_name is not None else []),
            *outward_mounts(resolved),
        ],
    }
    if control.defaults.image_pull_policy:
        container["imagePullPolicy"] = control.defaults.image_pull_policy
    return container


def _secret_volumes(resolved: Resolved, git: GitCode) -> list[dict[str, Any]]:
    if git.secret_name is None:
        return []
    mode = secret_mode(resolved.settings)
    return [{"name": GIT, "secret": {"secretName": git.secret_name, "defaultMode": mode}}]


def _mount(volume: str) -> dict[str, Any]:
    return {"name": volume, "mountPath": CODE_MOUNT, "readOnly": True}


def _below(folder: str, path: str) -> str:
    return posixpath.normpath(posixpath.join(folder, path))
