"""The chart through the real helm and a real API server: rendered, installed, upgraded, uninstalled."""

import asyncio
import dataclasses
import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML
from tests.apiserver.chart import CHART, granted, helm, render

ROOT = Path(__file__).resolve().parents[2]
CRD_NAME = "rltrainingjobs.trimtab.dev"
NOT_HERE = {"ServiceMonitor", "PodMonitor"}
"""Kinds of the Prometheus operator, which this API server does not have."""

MATRIX: dict[str, dict[str, Any]] = {
    "defaults": {},
    "two replicas with everything on": {
        "replicas": 2,
        "priorityClassName": "system-cluster-critical",
        "podLabels": {"team": "platform"},
        "podAnnotations": {"note": "x"},
        "nodeSelector": {"pool": "cpu"},
        "tolerations": [{"key": "pool", "operator": "Exists"}],
        "imagePullSecrets": [{"name": "registry"}],
        "metrics": {
            "serviceMonitor": {"enabled": True, "labels": {"release": "prometheus"}},
            "podMonitor": {"enabled": True},
            "dashboard": {"enabled": True},
        },
        "admissionPolicy": {
            "requireQueue": True,
            "maxGpusPerJob": 64,
            "maxGpusPerJobIn": {"team-a": 8, "team-b": 0},
            "namespaceSelector": {"matchLabels": {"team": "research"}},
        },
    },
    "two namespaces alone": {"watchNamespaces": ["default", "kube-public"], "crd": {"install": False}},
    "another service account, no rbac": {
        "serviceAccount": {"create": False, "name": "mine"},
        "rbac": {"create": False},
    },
    "defaults for roles": {
        "defaults": {
            "fsGroup": None,
            "roles": {
                "rollout": {
                    "nodeSelector": {"gpu": "h200"},
                    "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists"}],
                    "resources": {"limits": {"memory": "200Gi"}},
                    "podTemplate": {"metadata": {"labels": {"a": "b"}}},
                }
            },
            "networkPolicy": {"egress": [{"ports": [{"port": 443}]}]},
            "proxy": {"https": "http://proxy:3128"},
        }
    },
}
REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "a name that no value has": ({"replica": 2}, "replica"),
    "no replica": ({"replicas": 0}, "replicas"),
    "a role that does not exist": ({"defaults": {"roles": {"trainer": {}}}}, "trainer"),
    "a port below those of users": ({"metrics": {"port": 80}}, "port"),
    "a pull policy that does not exist": ({"image": {"pullPolicy": "Sometimes"}}, "pullPolicy"),
    "a namespace that cannot be": ({"admissionPolicy": {"maxGpusPerJobIn": {"a'b": 1}}}, "a\\'b"),
    "root": ({"defaults": {"runAsUser": 0}}, "runAsUser"),
}


@pytest.mark.parametrize("values", MATRIX.values(), ids=MATRIX.keys())
def test_chart_lints_strictly(values):
    helm("lint", "--strict", str(CHART), values=values)


@pytest.mark.parametrize(("values", "named"), REFUSED.values(), ids=REFUSED.keys())
def test_wrong_value_is_refused_by_name(values, named):
    result = helm("template", "release", str(CHART), values=values, check=False)
    assert result.returncode != 0
    assert named in result.stderr


@pytest.mark.parametrize("values", MATRIX.values(), ids=MATRIX.keys())
async def test_every_rendered_object_is_accepted(api, values):
    for manifest in render(values):
        if manifest["kind"] not in NOT_HERE:
            namespace = manifest["metadata"].get("namespace", api.namespace)
            await dataclasses.replace(api, namespace=namespace).apply(manifest, dryRun="All")


async def test_operator_and_test_pods_are_accepted_by_the_restricted_standard(api):
    labels = {"pod-security.kubernetes.io/enforce": "restricted"}
    await api.patch("Namespace", api.namespace, {"metadata": {"labels": labels}})
    rendered = render({})
    deployment = next(each for each in rendered if each["kind"] == "Deployment")
    template = deployment["spec"]["template"]
    template["spec"].pop("serviceAccountName")
    template["metadata"].pop("annotations")
    pods = [
        {"apiVersion": "v1", "kind": "Pod", **template, "metadata": {"name": "operator"}},
        next(each for each in rendered if each["kind"] == "Pod"),
    ]
    for pod in pods:
        await api.create(pod, dryRun="All")


def test_role_defaults_reach_the_settings_with_an_image_for_each_role():
    rendered = render(MATRIX["defaults for roles"])
    config_map = next(each for each in rendered if each["metadata"]["name"].endswith("-settings"))
    settings = json.loads(config_map["data"]["settings.json"])
    assert settings["roles"]["rollout"]["nodeSelector"] == {"gpu": "h200"}
    assert settings["roles"]["rollout"]["image"] == "ghcr.io/trimtab/worker:0.1.0"
    assert settings["roles"]["reward"]["image"] == "ghcr.io/trimtab/control:0.1.0"
    assert settings["fsGroup"] is None
    assert settings["egress"] == [{"ports": [{"port": 443}]}]


def test_settings_are_what_the_operator_reads():
    from trimtab_operator.model.resolved import Settings

    for values in MATRIX.values():
        rendered = render(values)
        config_map = next(each for each in rendered if each["metadata"]["name"].endswith("-settings"))
        settings = Settings.model_validate_json(config_map["data"]["settings.json"])
        given = json.loads(config_map["data"]["settings.json"])
        assert set(given) <= {field.alias for field in Settings.model_fields.values()}
        assert settings.roles["coordinator"].image


def test_rights_are_those_that_the_operator_needs_and_no_others():
    from trimtab_operator.adapter.permissions import IN_JOB_NAMESPACES, IN_OWN_NAMESPACE

    rendered = render({})
    own = next(each for each in rendered if each["kind"] == "Role")
    jobs = next(
        each
        for each in rendered
        if each["kind"] == "ClusterRole" and not each["metadata"]["name"].endswith(("-view", "-edit"))
    )
    assert granted(own["rules"]) == {(p.group, p.resource, p.verb) for p in IN_OWN_NAMESPACE}
    assert granted(jobs["rules"]) == {(p.group, p.resource, p.verb) for p in IN_JOB_NAMESPACES}
    namespaced = render(MATRIX["two namespaces alone"])
    for each in namespaced:
        if each["kind"] == "Role" and each["metadata"]["name"].endswith("-jobs"):
            assert granted(each["rules"]) == granted(jobs["rules"])


def test_operator_takes_the_arguments_that_the_chart_gives():
    from trimtab_operator.main import main

    for values in MATRIX.values():
        deployment = next(each for each in render(values) if each["kind"] == "Deployment")
        (container,) = deployment["spec"]["template"]["spec"]["containers"]
        with pytest.raises(SystemExit) as ended:
            main([*container["args"], "--help"])
        assert ended.value.code == 0


def test_nothing_but_the_operator_has_its_labels():
    from trimtab_operator.model.resolved import Settings

    rendered = render({})
    config_map = next(each for each in rendered if each["metadata"]["name"].endswith("-settings"))
    labels = Settings.model_validate_json(config_map["data"]["settings.json"]).operator_labels
    test_pod = next(each for each in rendered if each["kind"] == "Pod")
    assert not labels.items() <= test_pod["metadata"]["labels"].items()
    deployment = next(each for each in rendered if each["kind"] == "Deployment")
    assert labels.items() <= deployment["spec"]["template"]["metadata"]["labels"].items()


def test_namespaced_mode_asks_for_no_right_of_the_cluster():
    kinds = {each["kind"] for each in render(MATRIX["two namespaces alone"])}
    assert "Role" in kinds
    assert not kinds & {"ClusterRole", "ClusterRoleBinding", "CustomResourceDefinition"}


@pytest.mark.slow
async def test_install_upgrade_and_uninstall_keep_the_crd_and_its_jobs(own_apiserver, connect, tmp_path):
    async with connect(own_apiserver) as api:
        environment = {
            **os.environ,
            "KUBECONFIG": str(own_apiserver.kubeconfig()),
            "HELM_CACHE_HOME": str(tmp_path),
        }

        async def run(*arguments: str, values: dict[str, Any] | None = None) -> Any:
            return await asyncio.to_thread(helm, *arguments, values=values, env=environment)

        where = ("--namespace", api.namespace)
        old = tmp_path / "old"
        shutil.copytree(CHART, old)
        chart = (old / "Chart.yaml").read_text(encoding="utf-8")
        (old / "Chart.yaml").write_text(
            chart.replace("version: 0.1.0", "version: 0.0.9", 1), encoding="utf-8"
        )
        crd = (old / "files/crd.yaml").read_text(encoding="utf-8")
        (old / "files/crd.yaml").write_text(crd.replace("- rltj\n", "- rltjold\n"), encoding="utf-8")

        await run("install", "trimtab", str(old), *where, values={})
        before = await api.get("CustomResourceDefinition", CRD_NAME)
        assert before["spec"]["names"]["shortNames"] == ["rltjold"]
        job = YAML(typ="safe").load((ROOT / "examples/quickstart/job.yaml").read_text(encoding="utf-8"))
        await api.create(job)

        await run("upgrade", "trimtab", str(CHART), *where, values={"replicas": 2})
        after = await api.get("CustomResourceDefinition", CRD_NAME)
        assert after["spec"]["names"]["shortNames"] == ["rltj"]
        assert (await api.get("Deployment", "trimtab"))["spec"]["replicas"] == 2
        assert await api.get("PodDisruptionBudget", "trimtab")

        await run("uninstall", "trimtab", *where)
        with pytest.raises(api.Error, match="not found"):
            await api.get("Deployment", "trimtab")
        assert await api.get("CustomResourceDefinition", CRD_NAME)
        assert await api.get("RLTrainingJob", job["metadata"]["name"])

        await run("install", "trimtab", str(CHART), *where, values={})


@pytest.mark.slow
async def test_admission_policy_asks_for_a_queue_and_caps_gpus(own_apiserver, connect):
    async with connect(own_apiserver) as api:
        values = {
            "admissionPolicy": {
                "requireQueue": True,
                "maxGpusPerJob": 8,
                "maxGpusPerJobIn": {"kube-public": 4, "kube-node-lease": 0},
            }
        }
        await api.install_crd(YAML(typ="safe", pure=True).load(CHART / "files" / "crd.yaml"))
        for manifest in render(values):
            if manifest["kind"].startswith("ValidatingAdmissionPolicy"):
                await api.apply(manifest)
        job = YAML(typ="safe").load((ROOT / "examples/quickstart/job.yaml").read_text(encoding="utf-8"))
        job["metadata"]["name"] = "refused"
        await _until_refused(api, job, "names its queue")
        job["metadata"]["labels"] = {"kueue.x-k8s.io/queue-name": "research"}
        job["spec"]["roles"] = {"actor": {"nodes": 2, "gpusPerNode": 8}}
        await _until_refused(api, job, "at most 8 GPUs")
        job["spec"]["roles"] = {"actor": {"gpusPerNode": 4}, "rollout": {"replicas": 4, "gpusPerNode": 1}}
        await api.create(job)
        with pytest.raises(api.Error, match="scaling may only lower replicas"):
            await _scale(api, job, 5)
        await _scale(api, job, 3)
        for namespace, words in (("kube-public", "at most 4 GPUs"), ("kube-node-lease", "")):
            elsewhere = dataclasses.replace(api, namespace=namespace)
            if words:
                with pytest.raises(api.Error, match=words):
                    await elsewhere.create(job)
            else:
                await elsewhere.create(job)
                await _scale(elsewhere, job, 50)


async def _scale(api: Any, job: dict[str, Any], replicas: int) -> None:
    name = job["metadata"]["name"]
    await api.patch("RLTrainingJob", name, {"spec": {"replicas": replicas}}, subresource="scale")


@pytest.mark.slow
async def test_admission_policy_lets_a_job_go_that_it_would_not_let_in(own_apiserver, connect):
    async with connect(own_apiserver) as api:
        await api.install_crd(YAML(typ="safe", pure=True).load(CHART / "files" / "crd.yaml"))
        job = YAML(typ="safe").load((ROOT / "examples/quickstart/job.yaml").read_text(encoding="utf-8"))
        job["metadata"] = {"name": "old", "finalizers": ["example.test/wait"]}
        await api.create(job)
        for manifest in render({"admissionPolicy": {"requireQueue": True}}):
            if manifest["kind"].startswith("ValidatingAdmissionPolicy"):
                await api.apply(manifest)
        other = {**job, "metadata": {"name": "new"}}
        await _until_refused(api, other, "names its queue")
        await api.delete("RLTrainingJob", "old")
        await api.patch("RLTrainingJob", "old", {"metadata": {"finalizers": None}})
        with pytest.raises(api.Error, match="not found"):
            await api.get("RLTrainingJob", "old")


async def _until_refused(api: Any, job: dict[str, Any], words: str) -> None:
    """A policy takes a moment to be in force."""
    for _ in range(100):
        try:
            await api.create(job, dryRun="All")
        except api.Error as error:
            assert words in error.message
            return
        await asyncio.sleep(0.2)
    pytest.fail("the policy never refused the job")
