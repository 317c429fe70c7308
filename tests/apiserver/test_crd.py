"""The CustomResourceDefinition in a real API server: what it accepts, keeps, fills in and shows."""

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from trimtab.api import parse_job, training_identity
from trimtab.api.status import JobStatus

ROOT = Path(__file__).resolve().parents[2]
JOBS = sorted(
    [*(ROOT / "examples").rglob("job*.yaml"), *(ROOT / "runtime/trimtab/api/presets").glob("*.yaml")]
)
CRD_NAME = "rltrainingjobs.trimtab.dev"
TABLE = "application/json;as=Table;v=v1;g=meta.k8s.io"


def read(path: Path) -> dict[str, Any]:
    return YAML(typ="safe", pure=True).load(path)


def job(**spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": "trimtab.dev/v1alpha1",
        "kind": "RLTrainingJob",
        "metadata": {"name": "test"},
        "spec": {
            "model": {"path": "model"},
            "data": {"train": {"path": "train.jsonl"}},
            "algorithm": {"grpo": {}},
            "training": {"steps": 10},
            "rewards": [{"function": "exact_match"}],
        }
        | spec,
    }


async def test_schema_is_structural_and_its_names_are_accepted(crd):
    definition = await crd.get("CustomResourceDefinition", CRD_NAME)
    conditions = {each["type"]: each["status"] for each in definition["status"]["conditions"]}
    assert conditions == {"NamesAccepted": "True", "Established": "True"}


@pytest.mark.parametrize("path", JOBS, ids=lambda path: str(path.relative_to(ROOT)))
async def test_example_is_stored_as_the_same_job(crd, path):
    data = read(path)
    stored = await crd.create(data)
    expected, found = parse_job(data), parse_job(stored, unknown="ignore")
    assert found.spec == expected.spec
    assert training_identity(found) == training_identity(expected)


async def test_client_side_apply_fits_its_annotation(crd, kubectl):
    """`kubectl apply` keeps the whole object in an annotation of at most 262,144 bytes."""
    text = json.dumps(read(ROOT / "charts/trimtab/files/crd.yaml"), separators=(",", ":"))
    assert len(text) < 131_072
    result = await kubectl("apply", "--dry-run=server", "-f", str(ROOT / "charts/trimtab/files/crd.yaml"))
    assert CRD_NAME in result.stdout


async def test_defaults_that_every_job_shares_are_stored_and_others_are_not(crd):
    spec = (await crd.create(job()))["spec"]
    assert spec["seed"] == 0
    assert spec["roles"]["rollout"]["replicas"] == 1
    assert spec["roles"]["rollout"]["engine"] == {
        "vllm": {
            "tensorParallelSize": 1,
            "dtype": "bfloat16",
            "gpuMemoryUtilization": 0.85,
            "maxConcurrentRequests": 256,
        }
    }
    assert "miniBatchPrompts" not in spec["training"], "follows from promptsPerStep"
    assert "name" not in spec["rewards"][0], "follows from the function"
    assert "image" not in spec["roles"]["rollout"], "is the platform's"
    assert "format" not in spec["data"]["train"], "is refused beside reasoningGym"


async def test_null_is_kept_where_it_says_something_and_left_out_elsewhere(crd):
    stored = await crd.create(job(checkpoint={"everySteps": None}, validation=None, roles={"critic": None}))
    assert stored["spec"]["checkpoint"]["everySteps"] is None
    assert "validation" not in stored["spec"]
    assert "critic" not in stored["spec"]["roles"]
    assert parse_job(stored, unknown="ignore").spec.checkpoint.every_steps is None


async def test_embedded_objects_keep_what_trimtab_does_not_read(crd):
    template = {"metadata": {"annotations": {"a": "b"}}, "spec": {"containers": [{"name": "x", "tty": True}]}}
    spec = job(
        volumes=[{"name": "runs", "persistentVolumeClaim": {"claimName": "runs"}}],
        volumeMounts=[{"name": "runs", "mountPath": "/runs", "subPathExpr": "x"}],
        roles={"actor": {"podTemplate": template, "env": [{"name": "A", "valueFrom": {"fieldRef": {}}}]}},
        rewards=[{"function": "a:b", "arguments": {"deep": {"list": [1, "two", None]}}}],
        scheduling={"affinity": {"nodeAffinity": {}}},
        networkPolicy={"egress": [{"ports": [{"port": 443}]}]},
    )
    stored = (await crd.create(spec))["spec"]
    for field in ("volumes", "networkPolicy"):
        assert stored[field] == spec["spec"][field]
    assert stored["roles"]["actor"]["podTemplate"] == template
    assert stored["roles"]["actor"]["env"] == [{"name": "A", "valueFrom": {"fieldRef": {}}}]
    assert stored["volumeMounts"] == [
        {"name": "runs", "mountPath": "/runs", "subPathExpr": "x", "readOnly": False}
    ]
    assert stored["rewards"][0]["arguments"] == {"deep": {"list": [1, "two", None]}}
    assert stored["scheduling"]["affinity"] == {"nodeAffinity": {}}


@pytest.mark.parametrize(
    ("spec", "path"),
    [
        pytest.param({"sed": 1}, "spec.sed", id="at the top"),
        pytest.param({"training": {"steps": 1, "stpes": 2}}, "spec.training.stpes", id="in an object"),
        pytest.param(
            {"rewards": [{"function": "length", "wieght": 1}]}, "spec.rewards[0].wieght", id="in a list"
        ),
        pytest.param(
            {"scheduling": {"nodeSelectors": {}}}, "spec.scheduling.nodeSelectors", id="in scheduling"
        ),
    ],
)
async def test_misspelt_field_is_refused(crd, spec, path):
    with pytest.raises(crd.Error) as caught:
        await crd.create(job(**spec))
    assert f'unknown field "{path}"' in caught.value.message


@pytest.mark.parametrize("size", [2**21, "2Mi", "1500M", "2097152"])
async def test_size_is_a_number_or_a_quantity(crd, size):
    stored = await crd.create(job(weightSync={"bucketBytes": size}))
    assert stored["spec"]["weightSync"]["bucketBytes"] == size


@pytest.mark.parametrize(
    ("spec", "path", "message"),
    [
        pytest.param(
            {"weightSync": {"bucketBytes": "two"}}, "spec.weightSync.bucketBytes", "match", id="text"
        ),
        pytest.param(
            {"weightSync": {"bucketBytes": 7}},
            "spec.weightSync.bucketBytes",
            "greater than or equal to 1048576",
            id="small",
        ),
        pytest.param(
            {"roles": {"actor": {"resources": {"limits": {"cpu": "lots"}}}}},
            "spec.roles.actor.resources.limits.cpu",
            "match",
            id="a resource that is no quantity",
        ),
        pytest.param(
            {"algorithm": {"grpo": {"clip": {"low": 0}}}},
            "spec.algorithm.grpo.clip.low",
            "greater than 0",
            id="a number at its excluded bound",
        ),
        pytest.param({"seed": 2**31}, "spec.seed", "less than or equal to", id="a number above its bound"),
        pytest.param({"rewards": []}, "spec.rewards", "at least 1 items", id="an empty list"),
        pytest.param(
            {"volumes": [{"name": "a"}, {"name": "a"}]},
            "spec.volumes[1]",
            "Duplicate",
            id="a key that is twice",
        ),
        pytest.param(
            {"storage": {"claim": {"size": "1Gi", "accessModes": ["ReadWriteMany", "ReadWriteMany"]}}},
            "spec.storage.claim.accessModes[1]",
            "Duplicate",
            id="an item of a set that is twice",
        ),
        pytest.param(
            {"cleanupPolicy": "Some"}, "spec.cleanupPolicy", "supported values", id="no such choice"
        ),
        pytest.param({"model": None}, "spec.model", "Required", id="a field that is missing"),
    ],
)
async def test_schema_refuses(crd, spec, path, message):
    with pytest.raises(crd.Error) as caught:
        await crd.create(job(**spec))
    assert caught.value.status == 422
    assert [text for field, text in caught.value.causes if field == path and message in text]


FULL_STATUS = {
    "observedGeneration": 1,
    "phase": "Running",
    "message": "step 3 of 10",
    "conditions": [
        {
            "type": "Running",
            "status": "True",
            "reason": "TakingSteps",
            "lastTransitionTime": datetime(2026, 1, 1, tzinfo=UTC),
        }
    ],
    "attempt": 2**45,
    "step": 3,
    "metrics": {"reward": 0.25, "kl": 0.001, "tokens_per_second": 1234.5},
    "roles": [{"name": "rollout", "replicas": 2}],
    "units": [{"name": "rollout-0", "not_before": datetime(2026, 1, 1, tzinfo=UTC)}],
    "checkpoint": {"step": 2, "path": "/runs/2"},
    "resolved": {"name": "test-1", "generation": 1},
    "restarts": 4,
    "rollout_replicas": 2,
    "rollout_selector": "a=b",
}


async def test_status_is_stored_whole_and_apart_from_the_spec(crd):
    created = await crd.create(job())
    status = JobStatus.model_validate(FULL_STATUS).model_dump(mode="json", exclude_none=True)
    written = await crd.replace(created | {"status": status}, subresource="status")
    assert written["status"] == status
    assert written["metadata"]["generation"] == 1
    assert JobStatus.model_validate(written["status"]) == JobStatus.model_validate(FULL_STATUS)
    await crd.patch("RLTrainingJob", "test", {"status": {"step": 9}})
    await crd.patch("RLTrainingJob", "test", {"spec": {"suspend": True}}, subresource="status")
    found = await crd.get("RLTrainingJob", "test")
    assert (found["status"]["step"], found["spec"]["suspend"]) == (3, False)


async def test_status_with_a_stale_resource_version_is_refused(crd):
    created = await crd.create(job())
    await crd.patch("RLTrainingJob", "test", {"status": {"step": 1}}, subresource="status")
    with pytest.raises(crd.Error) as caught:
        await crd.replace(created | {"status": {"step": 2}}, subresource="status")
    assert caught.value.status == 409


async def test_condition_appears_once_of_each_type(crd):
    created = await crd.create(job())
    condition = JobStatus.model_validate(FULL_STATUS).model_dump(mode="json")["conditions"][0]
    with pytest.raises(crd.Error, match="Duplicate value"):
        await crd.replace(created | {"status": {"conditions": [condition] * 2}}, subresource="status")


async def test_columns_say_how_far_the_job_is(crd):
    created = await crd.create(job())
    status = JobStatus.model_validate(FULL_STATUS).model_dump(mode="json", exclude_none=True)
    await crd.replace(created | {"status": status}, subresource="status")
    table = await crd.request("GET", await crd.path("RLTrainingJob"), accept=TABLE)
    columns = {
        column["name"]: (column["priority"], cell)
        for column, cell in zip(table["columnDefinitions"], table["rows"][0]["cells"], strict=True)
    }
    assert columns.pop("Age")[0] == 0
    assert columns == {
        "Name": (0, "test"),
        "Phase": (0, "Running"),
        "Step": (0, 3),
        "Reward": (0, 0.25),
        "Restarts": (0, 4),
        "KL": (1, 0.001),
        "Tokens/s": (1, 1234.5),
        "Message": (1, "step 3 of 10"),
    }


async def test_kubectl_knows_the_short_name_and_the_category(crd, kubectl):
    await crd.create(job())
    for name in ("rltj", "trimtab"):
        assert (await kubectl("get", name, "-o", "name")).stdout == "rltrainingjob.trimtab.dev/test\n"


async def test_kubectl_explains_a_field(crd, kubectl):
    result = await kubectl("explain", "rltj.spec.training.shardSize")
    assert "Ranks over which parameters are sharded" in " ".join(result.stdout.split())


async def test_scale_reads_and_sets_the_rollouts_of_a_job_that_does_not_name_them(crd, kubectl):
    created = await crd.create(job())
    status = {"rolloutReplicas": 1, "rolloutSelector": "trimtab.dev/job=test,trimtab.dev/role=rollout"}
    await crd.replace(created | {"status": status}, subresource="status")
    scale = await crd.get("RLTrainingJob", "test", subresource="scale")
    assert scale["spec"] == {"replicas": 1}
    assert scale["status"] == {"replicas": 1, "selector": status["rolloutSelector"]}
    await kubectl("scale", "rltj/test", "--replicas=3")
    assert (await crd.get("RLTrainingJob", "test"))["spec"]["roles"]["rollout"]["replicas"] == 3


@pytest.mark.parametrize(
    ("replicas", "message"),
    [
        pytest.param(0, "should be greater than or equal to 1", id="none at all"),
        pytest.param(1, "at most replicas", id="fewer than minReplicas"),
    ],
)
async def test_scale_below_what_the_job_needs_is_refused(crd, kubectl, replicas, message):
    await crd.create(job(roles={"rollout": {"replicas": 2, "minReplicas": 2}}))
    result = await kubectl("scale", "rltj/test", f"--replicas={replicas}", check=False)
    assert result.returncode == 1
    assert message in result.stderr


async def test_two_appliers_each_own_their_volumes(crd):
    await crd.apply(job(volumes=[{"name": "a", "emptyDir": {}}]), manager="one")
    identity = {key: job()[key] for key in ("apiVersion", "kind", "metadata")}
    await crd.patch("RLTrainingJob", "test", {"spec": {"suspend": True}})
    both = await crd.apply(identity | {"spec": {"volumes": [{"name": "b", "emptyDir": {}}]}}, manager="two")
    assert [volume["name"] for volume in both["spec"]["volumes"]] == ["a", "b"]
