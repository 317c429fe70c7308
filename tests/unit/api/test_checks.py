import pytest

from trimtab.api import JobError, parse_job

SAMPLING = {"sampling": {"temperature": 0.0}}

CASES = {
    "grpo refuses a critic": (
        {"roles": {"critic": {}}},
        {"roles": {"critic": None}},
        "spec.roles.critic",
        "grpo has no critic",
    ),
    "a reference needs a KL term": (
        {"roles": {"reference": {}}, "algorithm": {"grpo": {"kl": {"coefficient": 0}}}},
        {"roles": {"reference": {}}, "algorithm": {"grpo": {"kl": {"coefficient": 0.1}}}},
        "spec.roles.reference",
        "nothing uses a reference",
    ),
    "an adaptive KL coefficient starts above 0": (
        {"algorithm": {"grpo": {"kl": {"coefficient": 0, "controller": {"adaptive": {}}}}}},
        {"algorithm": {"grpo": {"kl": {"coefficient": 0.1, "controller": {"adaptive": {}}}}}},
        "spec.algorithm.grpo.kl.coefficient",
        "above 0",
    ),
    "k1 in the loss pulls nowhere": (
        {"algorithm": {"grpo": {"kl": {"estimator": "k1", "placement": "loss"}}}},
        {"algorithm": {"grpo": {"kl": {"estimator": "k1", "placement": "reward"}}}},
        "spec.algorithm.grpo.kl.estimator",
        "use k3, or placement: reward",
    ),
    "checkpoints go to a folder": (
        {"checkpoint": {"uri": "s3://bucket/run"}},
        {"checkpoint": {"uri": "file:///runs/run"}},
        "spec.checkpoint.uri",
        "has the scheme 's3'; allowed are a path and file:///path",
    ),
    "mini-batches divide the step": (
        {"training": {"promptsPerStep": 8, "miniBatchPrompts": 3}},
        {"training": {"promptsPerStep": 8, "miniBatchPrompts": 4}},
        "spec.training.miniBatchPrompts",
        "does not divide promptsPerStep (8)",
    ),
    "a micro-batch holds the longest sequence": (
        {
            "data": {"maxPromptTokens": 100},
            "training": {"maxResponseTokens": 28, "maxTokensPerMicroBatch": 127},
        },
        {
            "data": {"maxPromptTokens": 100},
            "training": {"maxResponseTokens": 28, "maxTokensPerMicroBatch": 128},
        },
        "spec.training.maxTokensPerMicroBatch",
        "at least 128 (data.maxPromptTokens 100 + maxResponseTokens 28)",
    ),
    "the shard size divides the ranks": (
        {"training": {"shardSize": 3}, "roles": {"actor": {"nodes": 2, "gpusPerNode": 4}}},
        {"training": {"shardSize": 4}, "roles": {"actor": {"nodes": 2, "gpusPerNode": 4}}},
        "spec.training.shardSize",
        "the actor's 8 ranks",
    ),
    "rollout minReplicas is at most replicas": (
        {"roles": {"rollout": {"replicas": 2, "minReplicas": 3}}},
        {"roles": {"rollout": {"replicas": 2, "minReplicas": 2}}},
        "spec.roles.rollout.minReplicas",
        "at most replicas (2)",
    ),
    "reward minReplicas is at most replicas": (
        {"roles": {"reward": {"minReplicas": 2}}},
        {"roles": {"reward": {"replicas": 2, "minReplicas": 2}}},
        "spec.roles.reward.minReplicas",
        "at most replicas (1)",
    ),
    "an engine uses all GPUs of its replica": (
        {"roles": {"rollout": {"gpusPerNode": 4, "engine": {"vllm": {"tensorParallelSize": 2}}}}},
        {"roles": {"rollout": {"gpusPerNode": 4, "engine": {"vllm": {"tensorParallelSize": 4}}}}},
        "spec.roles.rollout.engine.vllm.tensorParallelSize",
        "which are 4",
    ),
    "a vLLM engine is on one node": (
        {"roles": {"rollout": {"gpusPerNode": 2, "nodes": 2, "engine": {"vllm": {"tensorParallelSize": 4}}}}},
        {"roles": {"rollout": {"gpusPerNode": 4, "nodes": 1, "engine": {"vllm": {"tensorParallelSize": 4}}}}},
        "spec.roles.rollout.nodes",
        "not supported yet; use 1, and more replicas",
    ),
    "hf takes one GPU": (
        {"roles": {"rollout": {"gpusPerNode": 2, "engine": {"hf": {}}}}},
        {"roles": {"rollout": {"gpusPerNode": 1, "engine": {"hf": {}}}}},
        "spec.roles.rollout.engine.hf",
        "at most one GPU",
    ),
    "maxModelTokens holds the longest validation sequence": (
        {
            "validation": {"data": {"path": "x"}, "maxResponseTokens": 2048},
            "roles": {"rollout": {"engine": {"vllm": {"maxModelTokens": 2559}}}},
        },
        {
            "validation": {"data": {"path": "x"}, "maxResponseTokens": 2048},
            "roles": {"rollout": {"engine": {"vllm": {"maxModelTokens": 2560}}}},
        },
        "spec.roles.rollout.engine.vllm.maxModelTokens",
        "at least 2560",  # 512 of the prompt + 2048
    ),
    "training does not sample greedily": (
        {"roles": {"rollout": SAMPLING}},
        {"validation": {"data": {"path": "x"}, **SAMPLING}},
        "spec.roles.rollout.sampling.temperature",
        "more than 0",
    ),
    "a built-in function exists": (
        {"rewards": [{"function": "exact_mach"}]},
        {"rewards": [{"function": "my.rewards:Scorer.score"}]},
        "spec.rewards[0].function",
        "there is no built-in function exact_mach: did you mean exact_match?",
    ),
    "a built-in function of the validation exists": (
        {"validation": {"data": {"path": "x"}, "rewards": [{"function": "zzz"}]}},
        {"validation": {"data": {"path": "x"}, "rewards": [{"function": "length"}]}},
        "spec.validation.rewards[0].function",
        "built in are exact_match, numeric_match",
    ),
    "reward names are unique": (
        {"rewards": [{"function": "length"}, {"function": "my:length"}]},
        {"rewards": [{"function": "length"}, {"function": "my:length", "name": "mine"}]},
        "spec.rewards[1].name",
        "appears twice",
    ),
    "validation reward names are unique": (
        {"validation": {"data": {"path": "x"}, "rewards": [{"function": "length"}] * 2}},
        {"validation": {"data": {"path": "x"}, "rewards": [{"function": "length"}]}},
        "spec.validation.rewards[1].name",
        "appears twice",
    ),
    "a mount names a volume": (
        {"volumes": [{"name": "runs"}], "volumeMounts": [{"name": "run", "mountPath": "/runs"}]},
        {"volumes": [{"name": "runs"}], "volumeMounts": [{"name": "runs", "mountPath": "/runs"}]},
        "spec.volumeMounts[0].name",
        "'run' is no volume: runs",
    ),
    "storage names a volume": (
        {"storage": {"volume": {"name": "disk"}}, "volumes": [{"name": "runs"}]},
        {"storage": {"volume": {"name": "runs"}}, "volumes": [{"name": "runs"}]},
        "spec.storage.volume.name",
        "'disk' is no volume: runs",
    ),
    "storage is a claim or a volume": (
        {
            "storage": {"volume": {"name": "runs"}, "claim": {"size": "1Gi"}},
            "volumes": [{"name": "runs"}],
        },
        {"storage": {"claim": {"size": "1Gi"}}, "volumes": [{"name": "runs"}]},
        "spec.storage",
        "exactly one of these is allowed: claim, volume",
    ),
    "a volume's name is its own": (
        {"volumes": [{"name": "a"}, {"name": "b"}, {"name": "a"}]},
        {"volumes": [{"name": "a"}, {"name": "b"}]},
        "spec.volumes",
        "'a' appears twice; each item has its own name",
    ),
    "a folder is mounted once": (
        {
            "volumes": [{"name": "a"}],
            "volumeMounts": [{"name": "a", "mountPath": "/a"}, {"name": "a", "mountPath": "/a"}],
        },
        {
            "volumes": [{"name": "a"}],
            "volumeMounts": [{"name": "a", "mountPath": "/a"}, {"name": "a", "mountPath": "/b"}],
        },
        "spec.volumeMounts",
        "'/a' appears twice; each item has its own mountPath",
    ),
    "an environment variable is set once": (
        {"roles": {"actor": {"env": [{"name": "A", "value": "1"}, {"name": "A", "value": "2"}]}}},
        {"roles": {"actor": {"env": [{"name": "A", "value": "1"}, {"name": "B", "value": "2"}]}}},
        "spec.roles.actor.env",
        "'A' appears twice",
    ),
    "a spread constraint has a label of its own": (
        {
            "scheduling": {
                "topologySpreadConstraints": [
                    {"maxSkew": skew, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule"}
                    for skew in (1, 2)
                ]
            }
        },
        {
            "scheduling": {
                "topologySpreadConstraints": [
                    {"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": when}
                    for when in ("DoNotSchedule", "ScheduleAnyway")
                ]
            }
        },
        "spec.scheduling.topologySpreadConstraints",
        "'zone' and 'DoNotSchedule' appears twice; each item has its own topologyKey and whenUnsatisfiable",
    ),
    "an access mode is named once": (
        {"storage": {"claim": {"size": 2**30, "accessModes": ["ReadWriteMany", "ReadWriteMany"]}}},
        {"storage": {"claim": {"size": 2**30, "accessModes": ["ReadWriteMany", "ReadWriteOnce"]}}},
        "spec.storage.claim.accessModes",
        "'ReadWriteMany' appears twice; each item has its own value",
    ),
    "a GPU is a resource or a device class": (
        {"scheduling": {"accelerator": {"resource": {}, "deviceClass": {"name": "gpu"}}}},
        {"scheduling": {"accelerator": {"deviceClass": {"name": "gpu"}}}},
        "spec.scheduling.accelerator",
        "exactly one of these is allowed: resource, deviceClass",
    ),
    "code names a volume": (
        {"code": {"volume": {"name": "code"}}},
        {"code": {"volume": {"name": "code"}}, "volumes": [{"name": "code"}]},
        "spec.code.volume.name",
        "spec.volumes is empty",
    ),
    "steps and epochs exclude each other": (
        {"training": {"epochs": 2}},
        {"training": {"steps": None, "epochs": 2}},
        "spec.training",
        "steps is 10, epochs is 2",
    ),
    "steps or epochs is given": (
        {"training": {"steps": None}},
        {"training": {"steps": 1}},
        "spec.training",
        "neither is given",
    ),
    "an algorithm is chosen": (
        {"algorithm": {"grpo": None}},
        {"algorithm": {"grpo": {}}},
        "spec.algorithm",
        "nothing is chosen; exactly one of these is allowed: grpo",
    ),
    "engines exclude each other": (
        {"roles": {"rollout": {"engine": {"vllm": {}, "hf": {}}}}},
        {"roles": {"rollout": {"engine": {"hf": {}}}}},
        "spec.roles.rollout.engine",
        "vllm and hf are given together",
    ),
    "format goes with path": (
        {"data": {"train": {"path": None, "format": "jsonl", "python": {"className": "a:B"}}}},
        {"data": {"train": {"format": "jsonl"}}},
        "spec.data.train",
        "format goes with path alone",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_check_refuses_the_wrong_job(case, job_data):
    wrong, _, path, text = CASES[case]
    with pytest.raises(JobError) as caught:
        parse_job(job_data(**wrong))
    [problem] = caught.value.problems
    assert problem.path == path
    assert text in problem.message


@pytest.mark.parametrize("case", CASES)
def test_check_accepts_the_right_job(case, job_data):
    parse_job(job_data(**CASES[case][1]))


def test_checks_report_all_problems_at_once(job_data):
    data = job_data(training={"miniBatchPrompts": 7}, roles={"critic": {}, "rollout": {"minReplicas": 2}})
    with pytest.raises(JobError) as caught:
        parse_job(data)
    assert {problem.path for problem in caught.value.problems} == {
        "spec.training.miniBatchPrompts",
        "spec.roles.critic",
        "spec.roles.rollout.minReplicas",
    }
