"""The quickstart as its README tells it, with vLLM, on a cluster where helm has installed Trimtab."""

import subprocess

import pytest
from ruamel.yaml import YAML
from tests.cluster.jobs import QUICKSTART, ROLES, Space
from tests.cluster.kube import Kube, Manifest, run
from tests.cluster.release import Operator

ENDED = {
    "Validated": ("True", "Accepted"),
    "Admitted": ("True", "NoQueue"),
    "Running": ("False", "StepsDone"),
    "Suspended": ("False", "NotSuspended"),
    "MetricsHealthy": ("True", "AllFinite"),
    "Complete": ("True", "StepsDone"),
    "Failed": ("False", "StepsDone"),
}


def quickstart() -> Manifest:
    job: Manifest = YAML(typ="safe").load((QUICKSTART / "cluster.yaml").read_text())
    return job


def security_problems(pod: Manifest) -> list[str]:
    """What the restricted standard allows and we do not want all the same."""
    spec = pod["spec"]
    problems = []
    if spec.get("automountServiceAccountToken") is not False:
        problems.append("a service account's token")
    for container in spec["containers"] + spec.get("initContainers", []):
        context = container.get("securityContext", {})
        if not context.get("readOnlyRootFilesystem"):
            problems.append(f"{container['name']}: a root file system that can be written")
    return problems


def test_quickstart_trains_with_vllm_in_restricted_pods(space: Space):
    job = space.start(quickstart())
    job.until_condition("Running", timeout_s=400)
    pods = job.pods()
    assert sorted(pod["metadata"]["labels"]["trimtab.dev/role"] for pod in pods) == sorted(ROLES)
    assert {pod["metadata"]["name"]: security_problems(pod) for pod in pods if security_problems(pod)} == {}
    running = space.kube("get", "rltj", job.name, "--no-headers").split()
    assert running[:2] == [job.name, "Running"]

    job.until_condition("Complete", timeout_s=600)
    subprocess.run(
        ["kubectl", "-n", space.kube.namespace, "wait", "rltj", job.name, "--for=condition=Complete"],
        check=True,
        timeout=30,
        capture_output=True,
    )
    found = {c["type"]: (c["status"], c["reason"]) for c in job.status()["conditions"]}
    assert {type_: found.get(type_) for type_ in ENDED} == ENDED

    metrics = job.records("metrics.jsonl")
    assert [record["step"] for record in metrics if record["step"] > 0] == list(range(1, 31))
    scores = [record["val/score/mean"] for record in metrics if "val/score/mean" in record]
    assert scores[-1] > 0.8 > 0.6 > scores[0], scores

    header, row = (line.split() for line in space.kube("get", "rltj", job.name).splitlines())
    assert header == ["NAME", "PHASE", "STEP", "REWARD", "RESTARTS", "AGE"]
    assert row[:3] == [job.name, "Complete", "30"]
    last_reward = [record["critic/rewards/mean"] for record in metrics if "critic/rewards/mean" in record][-1]
    assert float(row[3]) == pytest.approx(last_reward, abs=0.05)
    assert row[4] == "0"
    wide = space.kube("get", "rltj", job.name, "-o", "wide").splitlines()[0]
    assert {"KL", "TOKENS/S", "MESSAGE"} <= set(wide.split())

    reasons = {
        event["reason"] for event in space.kube.list("event") if event["involvedObject"]["uid"] == job.uid
    }
    assert {"Accepted", "PodsCreated", "TakingSteps", "StepsDone"} <= reasons

    # Finished pods are kept for their logs; their files are whole.
    assert {pod["metadata"]["labels"]["trimtab.dev/role"] for pod in job.pods()} == set(ROLES)
    coordinator = job.pods("coordinator")[0]["metadata"]["name"]
    assert "step 30" in space.kube("logs", coordinator)
    assert "vllm" in space.kube("logs", job.pods("rollout")[0]["metadata"]["name"]).lower()
    listing = space.kube.exec("reader", "ls", f"{job.folder}/model")
    assert "model.safetensors" in listing


def test_helm_test_passes_and_the_operator_is_restricted(operator: Operator):
    run("helm", "test", "trimtab", "-n", operator.kube.namespace, "--timeout=120s", timeout_s=150)
    label = "pod-security.kubernetes.io/enforce=restricted"
    refused = Kube("")(
        "label", "namespace", operator.kube.namespace, label, "--overwrite", "--dry-run=server"
    )
    assert "violate" not in refused


def test_job_with_a_mistake_fails_at_once_and_says_which(space: Space):
    job = quickstart()
    job["metadata"]["name"] = "mistaken"
    job["spec"]["rewards"] = [{"function": "exact_match", "arguments": {"feild": "answer"}}]
    started = space.start(job)
    started.until(lambda: started.condition("Failed")[0] == "True", "Failed", timeout_s=180)
    assert started.condition("Failed") == ("True", "UserError")
    failed = next(c for c in started.status()["conditions"] if c["type"] == "Failed")
    assert "feild" in failed["message"]
    assert "Traceback" not in failed["message"]
