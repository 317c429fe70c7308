"""A job's spec and the platform's settings, resolved for one attempt. Called by `reconcile`, once for each.

What comes out is stored in an immutable ConfigMap; every pod of the attempt is rendered from it.
"""

import hashlib
from collections.abc import Iterable
from pathlib import Path, PurePosixPath

from trimtab.api import API_VERSION, KIND, JobError, JobSpec, Problem, ResolvedJob, RLTrainingJob, parse_job
from trimtab_operator.builders.config_map import load_resolved, resolved_manifest
from trimtab_operator.builders.reserved import reserved_problems
from trimtab_operator.builders.roles import role_of
from trimtab_operator.builders.storage import run_folder, storage_problem, storage_problems
from trimtab_operator.constants import ROLES
from trimtab_operator.model.observed import Job
from trimtab_operator.model.resolved import Resolved, Settings

__all__ = ["load_resolved", "parse", "resolve", "resolved_manifest", "resolved_name", "storage_problem"]

_BASE_DIR = Path("/")
"""What relative paths of a job start from in a pod."""
_MAX_BYTES = 480_000
"""Of the resolved job as JSON; it is in a ConfigMap twice, which may hold 1 MiB."""


def parse(job: Job) -> RLTrainingJob:
    """The job's spec as models; raises `JobError` with every problem that the fields themselves have.

    Unknown fields are ignored: a newer CRD may have them. Of the metadata only name and namespace are read:
    the rest (such as kubectl's last-applied annotation) has no part in training.
    """
    data = {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "metadata": {"name": job.name, "namespace": job.namespace},
        "spec": dict(job.spec),
    }
    return parse_job(data, source=job.name, unknown="ignore")


def resolve(job: Job, settings: Settings, attempt: int, *, first_attempt: int | None = None) -> Resolved:
    """Everything decided for one attempt; raises `JobError` with every problem of the spec.

    `first_attempt` is that of the job's first start; None: this one.
    """
    parsed = parse(job)
    problems = list(_cluster_problems(parsed.spec, settings))
    if problems:
        raise JobError(problems, source=job.name)
    resolved_job = ResolvedJob.resolve(
        parsed,
        attempt=attempt,
        first_attempt=first_attempt,
        base_dir=_BASE_DIR,
        run_dir=Path(run_folder(parsed.spec, job=job.name, uid=job.uid)),
    )
    size = len(resolved_job.model_dump_json())
    if size > _MAX_BYTES:
        message = (
            f"has {size} bytes once resolved, at most {_MAX_BYTES} are allowed: shorten the podTemplates"
        )
        raise JobError([Problem("spec", None, message)], source=job.name)
    return Resolved(
        name=resolved_name(job.name, job.uid, attempt),
        job_uid=job.uid,
        generation=job.generation,
        resolved_job=resolved_job,
        settings=settings,
    )


def resolved_name(job: str, uid: str, attempt: int) -> str:
    """Name of the ConfigMap that holds an attempt's resolved spec."""
    return f"{job}-{hashlib.sha256(f'{uid}/{attempt}'.encode()).hexdigest()[:10]}"


def _cluster_problems(spec: JobSpec, settings: Settings) -> Iterable[Problem]:
    """What is right on a laptop and wrong in a cluster."""
    if spec.code is not None and spec.code.path is not None:
        yield Problem(
            "spec.code.path",
            spec.code.path,
            "is for `trimtab run` alone; in a cluster the code comes from image, configMap, volume or git",
        )
    for field, path in _code_folders(spec):
        if PurePosixPath(path).is_absolute() or ".." in PurePosixPath(path).parts:
            yield Problem(field, path, f"{path!r} is not a folder inside: relative, and without `..`")
    for name in ROLES:
        if not role_of(spec, settings, name).image:
            yield Problem(
                f"spec.roles.{name}.image",
                None,
                f"is required: the platform's settings (roles.{name}.image) name no image either",
            )
    yield from storage_problems(spec)
    yield from reserved_problems(spec, settings)


def _code_folders(spec: JobSpec) -> Iterable[tuple[str, str]]:
    if spec.code is not None and spec.code.volume is not None:
        yield "spec.code.volume.path", spec.code.volume.path
    if spec.code is not None and spec.code.git is not None:
        yield "spec.code.git.path", spec.code.git.path
