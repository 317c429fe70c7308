from collections.abc import Callable
from typing import Any

import pytest

from trimtab.api import JobError, ResolvedJob
from trimtab_operator.builders.resolve import parse, resolve, resolved_name
from trimtab_operator.model.observed import Job
from trimtab_operator.model.resolved import Resolved, Settings

Make = Callable[..., Resolved]
MakeJob = Callable[..., Job]
MakeSettings = Callable[..., Settings]


def problems(make: Make, **changes: Any) -> dict[str, str]:
    with pytest.raises(JobError) as caught:
        make(**changes)
    return {problem.path: problem.message for problem in caught.value.problems}


def test_resolve_small_job_fills_in_everything_that_pods_read(make: Make) -> None:
    resolved = make()
    assert resolved.attempt == 1001
    assert resolved.generation == 3
    assert resolved.resolved_job.job.metadata.namespace == "team-a"
    assert resolved.resolved_job.job.spec.roles.rollout.replicas == 1
    assert resolved.resolved_job.base_dir == "/"
    assert len(resolved.resolved_job.training_identity) == 64


def test_resolve_survives_json_unchanged(make: Make) -> None:
    resolved = make(roles__actor__podTemplate={"spec": {"nodeName": "n1"}})
    assert Resolved.model_validate_json(resolved.model_dump_json()) == resolved


def test_resolved_job_is_what_the_pods_processes_load(make: Make, tmp_path: Any) -> None:
    resolved = make()
    path = tmp_path / "job.json"
    path.write_text(resolved.resolved_job.model_dump_json())
    assert ResolvedJob.load(path) == resolved.resolved_job


def test_resolve_unknown_field_is_ignored(make: Make) -> None:
    resolved = make(fromTheFuture=1, roles__rollout__alsoNew={"a": 1})
    assert resolved.resolved_job == make().resolved_job


def test_resolve_wrong_fields_names_each(make: Make) -> None:
    found = problems(make, training__steps=0, roles__rollout__replicas="two")
    assert set(found) == {"spec.training.steps", "spec.roles.rollout.replicas"}


def test_parse_job_with_kubectls_annotations_reads_name_and_namespace(make_job: MakeJob) -> None:
    parsed = parse(make_job())
    assert (parsed.name, parsed.metadata.namespace) == ("sums", "team-a")
    assert not parsed.metadata.annotations


def test_resolve_code_of_this_machine_is_refused(make: Make) -> None:
    assert "trimtab run" in problems(make, code={"path": "src"})["spec.code.path"]


def test_resolve_without_any_image_names_the_role(make: Make) -> None:
    with pytest.raises(JobError) as caught:
        make(settings={"roles": {"actor": {"image": "a:1"}}}, roles__rollout__image="mine:1")
    assert [problem.path for problem in caught.value.problems] == [
        "spec.roles.coordinator.image",
        "spec.roles.reward.image",
    ]


def test_resolve_huge_template_is_refused_with_its_size(make: Make) -> None:
    template = {"metadata": {"annotations": {"note": "x" * 500_000}}}
    assert "bytes" in problems(make, roles__actor__podTemplate=template)["spec"]


def test_resolved_name_differs_by_attempt_and_job_and_fits(
    make_job: MakeJob, make_settings: MakeSettings
) -> None:
    names = {resolved_name("j" * 40, uid, attempt) for uid in ("a", "b") for attempt in (1, 2)}
    assert len(names) == 4
    assert all(len(name) <= 63 for name in names)
    resolved = resolve(make_job(), make_settings(), attempt=5)
    assert resolved.name == resolved_name("sums", make_job().uid, 5)


# Where the run is kept


def test_run_folder_with_storage_is_the_jobs_own(make: Make) -> None:
    assert make().resolved_job.run_dir == "/trimtab/run/sums-0f4e6c1a"


def on_volume(**source: Any) -> dict[str, Any]:
    return {
        "storage": None,
        "volumes": [{"name": "runs", **(source or {"persistentVolumeClaim": {"claimName": "runs"}})}],
        "volumeMounts": [{"name": "runs", "mountPath": "/runs"}],
        "checkpoint": {"uri": "/runs/sums"},
    }


def test_run_folder_without_storage_is_below_the_checkpoints(make: Make) -> None:
    assert make(**on_volume()).resolved_job.run_dir == "/runs/sums/run"
    as_uri = on_volume() | {"checkpoint": {"uri": "file:///runs/sums"}}
    assert make(**as_uri).resolved_job.run_dir == "/runs/sums/run"


def test_run_kept_nowhere_is_refused_with_what_to_do(make: Make) -> None:
    assert "storage: {claim:" in problems(make, storage=None)["spec.storage"]


@pytest.mark.parametrize(
    ("uri", "words"),
    [
        ("checkpoints", "absolute"),
        ("/runs/../etc", "absolute"),
        ("/elsewhere", "/runs"),
        ("/runsmore", "/runs"),
    ],
)
def test_checkpoints_on_no_volume_are_refused(make: Make, uri: str, words: str) -> None:
    found = problems(make, **(on_volume() | {"checkpoint": {"uri": uri}}))
    assert words in found["spec.checkpoint.uri"]


def test_checkpoints_beside_the_storage_are_refused_too(make: Make) -> None:
    assert "/trimtab/run" in problems(make, checkpoint={"uri": "/elsewhere"})["spec.checkpoint.uri"]


def test_checkpoints_inside_the_storage_are_accepted(make: Make) -> None:
    resolved = make(checkpoint={"uri": "/trimtab/run/shared"})
    assert resolved.resolved_job.job.spec.checkpoint.uri == "/trimtab/run/shared"


@pytest.mark.parametrize("kind", ["emptyDir", "configMap", "ephemeral"])
def test_checkpoints_on_a_volume_that_goes_with_the_pod_are_refused(make: Make, kind: str) -> None:
    assert kind in problems(make, **on_volume(**{kind: {}}))["spec.checkpoint.uri"]


def test_storage_on_a_volume_that_goes_with_the_pod_is_refused(make: Make) -> None:
    found = problems(make, storage={"volume": {"name": "runs"}}, volumes=[{"name": "runs", "emptyDir": {}}])
    assert "emptyDir" in found["spec.storage.volume.name"]
    unsaid = problems(make, storage={"volume": {"name": "runs"}}, volumes=[{"name": "runs"}])
    assert "emptyDir" in unsaid["spec.storage.volume.name"], "which Kubernetes fills in"


def test_checkpoints_on_a_read_only_mount_are_refused(make: Make) -> None:
    job = on_volume() | {"volumeMounts": [{"name": "runs", "mountPath": "/runs", "readOnly": True}]}
    assert "readOnly" in problems(make, **job)["spec.checkpoint.uri"]


def test_checkpoints_are_judged_by_the_innermost_mount(make: Make) -> None:
    job = on_volume() | {
        "volumes": [
            {"name": "runs", "nfs": {"server": "s", "path": "/"}},
            {"name": "scratch", "emptyDir": {}},
        ],
        "volumeMounts": [
            {"name": "runs", "mountPath": "/runs"},
            {"name": "scratch", "mountPath": "/runs/sums"},
        ],
    }
    assert "scratch" in problems(make, **job)["spec.checkpoint.uri"]
