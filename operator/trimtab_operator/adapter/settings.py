"""What the operator is started with: the flags as `main` read them, and the platform's settings file."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pydantic import ValidationError

from trimtab.errors import UserError
from trimtab_operator.model.resolved import Settings

LEASE: Final = "trimtab-operator"
IDENTITY_SECRET: Final = "trimtab-operator-identity"  # noqa: S105 -- the Secret's name
IDENTITY_DIR: Final = Path("/etc/trimtab/identity")


@dataclass(frozen=True, kw_only=True)
class Options:
    """One start of the operator."""

    kubeconfig: str
    """File; empty: $KUBECONFIG, else the service account."""
    namespaces: tuple[str, ...]
    """Whose jobs are served; empty: all."""
    settings: Settings
    identity_dir: Path
    """Folder of the file master.key."""
    identity_secret: str
    """Secret that is made where the folder has no such file, and that is mounted there."""
    leader_elect: bool
    health_port: int
    log_level: str
    environ: Mapping[str, str]


def load_settings(path: Path | None) -> Settings:
    """The settings in a JSON file; the defaults where there is none. UserError names what is wrong."""
    if path is None:
        return Settings()
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"--settings {path}: cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise UserError(f"--settings {path}: is no JSON: {error}") from error
    try:
        return Settings.model_validate(data)
    except ValidationError as error:
        lines = [
            f"  {'.'.join(str(part) for part in item['loc']) or 'the file'}: {item['msg']}"
            for item in error.errors(include_url=False)
        ]
        raise UserError("\n".join([f"--settings {path}:", *lines])) from error
