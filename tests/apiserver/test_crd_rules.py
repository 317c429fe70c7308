"""Every rule of the CRD against a real API server: a job that it accepts, and one that it refuses."""

from typing import Any

import pytest

from trimtab.api.changes import parts
from trimtab.api.rules import rules_by_place

Data = dict[str, Any]

NAMED = "the name of a job is a DNS label of at most 40 characters"
RUNS = [{"name": "runs", "emptyDir": {}}]
SAMPLES = {"data": {"path": "test.jsonl"}}


def merge(base: Any, changes: Any) -> Any:
    if isinstance(base, dict) and isinstance(changes, dict):
        return base | {name: merge(base.get(name), value) for name, value in changes.items()}
    return changes


def job(spec: Data, name: str = "test") -> Data:
    smallest = {
        "model": {"path": "model"},
        "data": {"train": {"path": "train.jsonl"}},
        "algorithm": {"grpo": {}},
        "training": {"steps": 10},
        "rewards": [{"function": "exact_match"}],
    }
    return {
        "apiVersion": "trimtab.dev/v1alpha1",
        "kind": "RLTrainingJob",
        "metadata": {"name": name},
        "spec": merge(smallest, spec),
    }


def nested(path: str, value: Any) -> Data:
    """`{"a": {"b": value}}` for `a.b`."""
    for name in reversed(path.split(".")):
        value = {name: value}
    return value


def one_of(*names: str) -> str:
    return f"exactly one of these is allowed: {', '.join(names)}"


SOURCES = one_of("path", "huggingFace", "reasoningGym", "python")
FORMAT = "format and split go with path alone"
GYM = {"path": None, "reasoningGym": {"task": "basic_arithmetic"}}
# What is refused: its field, the message, a spec that is accepted and one that is not.
CREATION: dict[str, tuple[str, str, Data, Data]] = {
    "an algorithm is chosen": (
        "spec.algorithm",
        one_of("grpo"),
        {"algorithm": {"grpo": {"groupSize": 4}}},
        {"algorithm": {"grpo": None}},
    ),
    "a KL controller is one of two": (
        "spec.algorithm.grpo.kl.controller",
        one_of("fixed", "adaptive"),
        nested("algorithm.grpo.kl", {"controller": {"adaptive": {}}}),
        nested("algorithm.grpo.kl", {"controller": {"adaptive": {}, "fixed": {}}}),
    ),
    "code comes from one place": (
        "spec.code",
        one_of("path", "image", "volume", "configMap", "git"),
        {"code": {"configMap": {"name": "a"}}},
        {"code": {"configMap": {"name": "a"}, "image": {"path": "/a"}}},
    ),
    "rows come from one place": (
        "spec.data.train",
        SOURCES,
        nested("data.train", GYM),
        nested("data.train", GYM | {"path": "a"}),
    ),
    "a format goes with a path": (
        "spec.data.train",
        FORMAT,
        nested("data.train", {"format": "jsonl"}),
        nested("data.train", GYM | {"format": "jsonl"}),
    ),
    "validation's rows come from one place": (
        "spec.validation.data",
        SOURCES,
        nested("validation.data", GYM),
        nested("validation.data", {}),
    ),
    "a split of validation goes with a path": (
        "spec.validation.data",
        FORMAT,
        nested("validation.data", {"path": "a", "split": "b"}),
        nested("validation.data", GYM | {"split": "b"}),
    ),
    "the length is steps or epochs": (
        "spec.training",
        "exactly one of steps and epochs is allowed",
        nested("training", {"epochs": 1, "steps": None}),
        nested("training", {"epochs": 1}),
    ),
    "a schedule is one of three": (
        "spec.training.optimizer.schedule",
        one_of("constant", "linear", "cosine"),
        nested("training.optimizer.schedule", {"cosine": {}}),
        nested("training.optimizer.schedule", {}),
    ),
    "an engine is one of two": (
        "spec.roles.rollout.engine",
        one_of("vllm", "hf"),
        nested("roles.rollout.engine", {"hf": {}}),
        nested("roles.rollout.engine", {"hf": {}, "vllm": {}}),
    ),
    "storage is a claim or a volume": (
        "spec.storage",
        one_of("claim", "volume"),
        {"volumes": RUNS, "storage": {"volume": {"name": "runs"}}},
        {"volumes": RUNS, "storage": {"volume": {"name": "runs"}, "claim": {"size": "1Gi"}}},
    ),
    "a GPU is a resource or a device class": (
        "spec.scheduling.accelerator",
        one_of("resource", "deviceClass"),
        nested("scheduling.accelerator", {"deviceClass": {"name": "gpu"}}),
        nested("scheduling.accelerator", {"deviceClass": {"name": "gpu"}, "resource": {}}),
    ),
    "grpo has no critic": (
        "spec.roles.critic",
        "grpo has no critic: leave the role out",
        {"roles": {"critic": None}},
        {"roles": {"critic": {}}},
    ),
    "a reference needs a KL term": (
        "spec.roles.reference",
        "nothing uses a reference: leave it out, or set algorithm.grpo.kl.coefficient above 0",
        {"roles": {"reference": {}}},
        {"roles": {"reference": {}}, "algorithm": {"grpo": {"kl": {"coefficient": 0}}}},
    ),
    "rollout minReplicas is at most replicas": (
        "spec.roles.rollout.minReplicas",
        "at most replicas",
        nested("roles.rollout", {"replicas": 2, "minReplicas": 2}),
        nested("roles.rollout", {"minReplicas": 2}),
    ),
    "reward minReplicas is at most replicas": (
        "spec.roles.reward.minReplicas",
        "at most replicas",
        nested("roles.reward", {"replicas": 2}),
        nested("roles.reward", {"replicas": 2, "minReplicas": 3}),
    ),
}

NAMES = {
    "a name of one letter": ("a", True),
    "a name of 40 characters": ("a" * 40, True),
    "a name with dashes and digits": ("1-a-2", True),
    "a name of 41 characters": ("a" * 41, False),
    "a name with a dot": ("a.b", False),
}

# A value before and after, for each part of the spec. None: the field is left out.
POD = {"spec": {"terminationGracePeriodSeconds": 5}}
LIMITS = {"limits": {"cpu": "1"}}
ROLE: dict[str, tuple[Any, Any]] = {
    "image": (None, "example.org/image:1"),
    "resources": (LIMITS, {"limits": {"cpu": "2"}}),
    "sharedMemory": ("1Gi", "2Gi"),
    "env": ([{"name": "A", "value": "1"}], [{"name": "A", "value": "2"}]),
    "podTemplate": (POD, {"spec": {"terminationGracePeriodSeconds": 6}}),
    "model": (None, {"path": "other"}),
    "gpusPerNode": (0, 1),
}
CHANGES: dict[str, tuple[Any, Any]] = {
    "seed": (0, 1),
    "model": ({"path": "model"}, {"path": "model", "revision": "v2"}),
    "code": (None, {"configMap": {"name": "a"}}),
    "data": ({"train": {"path": "a"}}, {"train": {"path": "b"}}),
    "algorithm": ({"grpo": {}}, {"grpo": {"groupSize": 4}}),
    "training.steps": (10, 11),
    "training.epochs": (None, 1),
    "training.promptsPerStep": (64, 32),
    "training.miniBatchPrompts": (None, 32),
    "training.updateEpochs": (1, 2),
    "training.maxResponseTokens": (1024, 512),
    "training.maxTokensPerMicroBatch": (16384, 8192),
    "training.gradientCheckpointing": (True, False),
    "training.shardSize": (None, 1),
    "training.precision": ({"compute": "bfloat16"}, {"compute": "float32"}),
    "training.optimizer": ({"learningRate": 1e-6}, {"learningRate": 1e-5}),
    "rewards": ([{"function": "length"}], [{"function": "length", "weight": 2}]),
    "roles.coordinator": (None, {"image": "example.org/image:1"}),
    **{f"roles.actor.{name}": values for name, values in ROLE.items()},
    "roles.actor.nodes": (1, 2),
    "roles.reference.model": ({"path": "a"}, {"path": "b"}),
    **{f"roles.rollout.{name}": values for name, values in ROLE.items()},
    "roles.rollout.replicas": (1, 2),
    "roles.rollout.minReplicas": (1, 2),
    "roles.rollout.nodes": (1, 2),
    "roles.rollout.engine": ({"vllm": {}}, {"hf": {}, "vllm": None}),
    "roles.rollout.sampling": ({"topP": 1}, {"topP": 0.5}),
    **{f"roles.reward.{name}": values for name, values in ROLE.items()},
    "roles.reward.replicas": (1, 2),
    "roles.reward.minReplicas": (1, 2),
    "roles.reward.workersPerReplica": (2, 3),
    "weightSync": ({"timeoutSeconds": 300}, {"timeoutSeconds": 30}),
    "validation": (None, SAMPLES),
    "checkpoint": ({"keep": 3}, {"keep": 4}),
    "tracking": ({"tensorboard": True}, {"tensorboard": False}),
    "failurePolicy.maxRestarts": (3, 4),
    "failurePolicy.maxFailedRewardShare": (0.1, 0.2),
    "deadlines": ({"updateSeconds": 5}, {"updateSeconds": 6}),
    "storage": ({"claim": {"size": "1Gi"}}, {"claim": {"size": "2Gi"}}),
    "volumes": (RUNS, [{"name": "runs", "persistentVolumeClaim": {"claimName": "runs"}}]),
    "volumeMounts": (None, [{"name": "runs", "mountPath": "/runs"}]),
    "suspend": (False, True),
    "activeDeadlineSeconds": (None, 60),
    "pendingDeadlineSeconds": (60, 120),
    "ttlSecondsAfterFinished": (0, 60),
    "cleanupPolicy": ("Running", "All"),
    "managedBy": (None, "example.org/other"),
    "scheduling": ({"nodeSelector": {"a": "b"}}, {"nodeSelector": {"a": "c"}}),
    "networkPolicy": ({"egress": [{"ports": [{"port": 1}]}]}, {"egress": [{"ports": [{"port": 2}]}]}),
}
# What else a part needs: in the job as it is created, and in the edit.
BESIDE: dict[str, tuple[Data, Data]] = {
    "roles.rollout.minReplicas": (nested("roles.rollout.replicas", 2), {}),
    "roles.reward.minReplicas": (nested("roles.reward.replicas", 2), {}),
    "volumeMounts": ({"volumes": RUNS}, {}),
    "training.epochs": ({}, nested("training.steps", None)),
}
PARTS = [part for part in parts() if not part.path.startswith("roles.critic.")]


async def refusals(api, data: Data) -> list[tuple[str, str]]:
    """The (field, message) pairs with which the API server refuses a job; empty: it does not."""
    try:
        await api.create(data, dryRun="All")
    except api.Error as error:
        assert error.status == 422, error
        return error.causes
    return []


def without_value(message: str) -> str:
    """The message without what the API server puts before it."""
    return message.removeprefix("Invalid value: ").removeprefix("Forbidden: ")


def test_every_rule_has_a_case():
    creation = {(place, message) for place, message, _, _ in CREATION.values()}
    for place, rule in rules_by_place():
        where = place + (rule.field_path or "")
        if "oldSelf" not in rule.expression and where != ".metadata":
            assert (where, rule.message) in creation
    assert set(CHANGES) == {part.path for part in PARTS}


@pytest.mark.parametrize("case", CREATION)
async def test_rule_accepts(crd, case):
    assert await refusals(crd, job(CREATION[case][2])) == []


@pytest.mark.parametrize("case", CREATION)
async def test_rule_refuses(crd, case):
    place, message, _, refused = CREATION[case]
    [(field, text)] = await refusals(crd, job(refused))
    assert field == place
    assert without_value(text) == message


@pytest.mark.parametrize("case", NAMES)
async def test_rule_of_the_name(crd, case):
    name, accepted = NAMES[case]
    found = await refusals(crd, job({}, name))
    assert [(field, NAMED in text) for field, text in found] == ([] if accepted else [("metadata", True)])


async def begin(api) -> None:
    """As the operator notes it: from now on not everything may change."""
    await api.patch("RLTrainingJob", "test", {"status": {"starts": 1}}, subresource="status")


async def change(api, path: str, *, suspended: bool, started: bool = True, beside: Data | None = None) -> str:
    """Create a job, change one part of it, and give the API server's refusal; empty: it accepts."""
    before, after = CHANGES[path]
    in_job, in_edit = BESIDE.get(path, ({}, {}))
    await api.create(job(merge(merge({"suspend": suspended}, in_job), nested(path, before))))
    if started:
        await begin(api)
    edit = merge(merge(nested(path, after), in_edit), beside or {})
    try:
        await api.patch("RLTrainingJob", "test", {"spec": edit})
    except api.Error as error:
        assert error.status == 422, error
        [(field, text)] = error.causes
        assert field == "spec"
        return without_value(text)
    return ""


HINT = "set spec.suspend to true first, or make a new job where a field never changes"


@pytest.mark.parametrize("part", PARTS, ids=lambda part: part.path)
async def test_change_of_a_running_job(crd, part):
    refusal = await change(crd, part.path, suspended=False)
    expected = {
        "always": "",
        "suspended": f"spec.{part.path} changes only while spec.suspend is true; {HINT}",
        "never": f"spec.{part.path} never changes; {HINT}",
    }[part.when]
    if part.path == "training.epochs":  # is given instead of steps
        expected = "spec.training.steps changes only while spec.suspend is true; " + expected
    assert refusal == expected


@pytest.mark.parametrize("part", PARTS, ids=lambda part: part.path)
async def test_change_of_a_suspended_job(crd, part):
    refusal = await change(crd, part.path, suspended=True)
    assert refusal == (f"spec.{part.path} never changes; {HINT}" if part.when == "never" else "")


@pytest.mark.parametrize("part", PARTS, ids=lambda part: part.path)
async def test_change_of_a_job_that_was_never_started(crd, part):
    refusal = await change(crd, part.path, suspended=False, started=False)
    assert refusal == (f"spec.{part.path} never changes; {HINT}" if part.path == "managedBy" else "")


async def test_suspended_job_is_changed_and_resumed_in_one_edit(crd):
    assert await change(crd, "training.optimizer", suspended=True, beside={"suspend": False}) == ""


async def test_running_job_is_not_suspended_and_changed_in_one_edit(crd):
    refusal = await change(crd, "training.optimizer", suspended=False, beside={"suspend": True})
    assert refusal == f"spec.training.optimizer changes only while spec.suspend is true; {HINT}"


async def test_refusal_names_every_field(crd):
    refusal = await change(crd, "seed", suspended=False, beside={"rewards": [{"function": "length"}]})
    assert refusal == (
        f"spec.seed never changes; spec.rewards changes only while spec.suspend is true; {HINT}"
    )


async def test_edit_that_writes_a_default_out_is_no_change(crd):
    await crd.create(job({}))
    await begin(crd)
    await crd.patch("RLTrainingJob", "test", {"spec": {"seed": 0, "weightSync": {"timeoutSeconds": 300}}})
    found = await crd.get("RLTrainingJob", "test")
    assert found["metadata"]["generation"] == 1


async def test_removing_what_was_set_is_a_change(crd):
    await crd.create(job({"code": {"configMap": {"name": "a"}}}))
    await begin(crd)
    with pytest.raises(crd.Error, match=r"spec\.code changes only while"):
        await crd.patch("RLTrainingJob", "test", {"spec": {"code": None}})


async def test_status_that_comes_with_a_change_does_not_let_it_pass(crd):
    await crd.create(job({}))
    await begin(crd)
    status = {"starts": 2, "step": 1, "message": "m", "units": [{"name": "actor-0"}]}
    with pytest.raises(crd.Error, match=r"spec\.seed never changes"):
        await crd.patch("RLTrainingJob", "test", {"spec": {"seed": 5}, "status": status})


async def test_labels_and_annotations_change_freely(crd):
    await crd.create(job({}))
    await begin(crd)
    await crd.patch("RLTrainingJob", "test", {"metadata": {"labels": {"a": "b"}, "annotations": {"c": "d"}}})
