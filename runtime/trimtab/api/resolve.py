"""The job as each role reads it: validated once, written as JSON by the launcher or the operator."""

import hashlib
import json
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, ValidationError

from trimtab.api.base import Model
from trimtab.api.job import RLTrainingJob
from trimtab.errors import UserError

IDENTITY_ROLES = ("actor", "critic", "reference")
"""Roles whose own model makes the training another one; the rollout serves the actor's weights."""


def training_identity(job: RLTrainingJob) -> str:
    """Hash over what would make a worker or a checkpoint belong to another training.

    That is model, data, algorithm, precision and seed, as resolved. Replica counts, learning rate, deadlines,
    templates and `suspend` are not in it. Fields that are None are left out, so that a later version's
    new optional fields do not change it.
    """
    spec = job.spec
    role_models = {
        name: role.model.model_dump(mode="json", exclude_none=True)
        for name in IDENTITY_ROLES
        if (role := getattr(spec.roles, name)) is not None and role.model is not None
    }
    parts = {
        "model": spec.model.model_dump(mode="json", exclude_none=True),
        "roleModels": role_models,
        "data": spec.data.model_dump(mode="json", exclude_none=True),
        "algorithm": spec.algorithm.model_dump(mode="json", exclude_none=True),
        "precision": spec.training.precision.model_dump(mode="json", exclude_none=True),
        "seed": spec.seed,
    }
    canonical = json.dumps(parts, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(canonical.encode()).hexdigest()


def _attempt(fields: dict[str, Any]) -> Any:
    return fields["attempt"]


class ResolvedJob(Model):
    """A job with everything that its processes need to know and cannot find out themselves."""

    job: RLTrainingJob
    """The job, every default filled in."""
    training_identity: Annotated[str, Field(min_length=64, max_length=64)]
    """What makes a worker or checkpoint belong to this training."""
    attempt: Annotated[int, Field(ge=1)]
    """Number of this start of the job; workers and commits of an older one are refused."""
    first_attempt: Annotated[int, Field(ge=1)] = Field(default_factory=_attempt)
    """Number of the job's first start: `checkpoint.resume: never` takes up nothing that is older."""
    base_dir: str
    """Absolute folder that relative paths in the job start from: that of the job's file."""
    run_dir: str
    """Absolute folder for everything that the run writes."""

    @classmethod
    def resolve(
        cls,
        job: RLTrainingJob,
        *,
        attempt: int,
        base_dir: Path,
        run_dir: Path,
        first_attempt: int | None = None,
    ) -> "ResolvedJob":
        """Resolve a job for one start; None: its first."""
        return cls(
            job=job,
            training_identity=training_identity(job),
            attempt=attempt,
            first_attempt=attempt if first_attempt is None else first_attempt,
            base_dir=str(base_dir.absolute()),
            run_dir=str(run_dir.absolute()),
        )

    def save(self, path: Path) -> None:
        """Write it as JSON, whole or not at all."""
        temporary = path.with_name(path.name + ".tmp")
        temporary.write_text(self.model_dump_json(indent=2) + "\n", encoding="utf-8")
        temporary.replace(path)

    @classmethod
    def load(cls, path: Path) -> "ResolvedJob":
        """Read what `save` wrote."""
        try:
            return cls.model_validate_json(path.read_text(encoding="utf-8"))
        except ValidationError as error:
            raise UserError(f"{path} is no resolved job of this version of Trimtab: {error}") from error
