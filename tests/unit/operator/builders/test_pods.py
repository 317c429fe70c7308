# ruff: noqa: S108 - folders in a pod
import json
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from trimtab.roles.environment import PodEnvironment
from trimtab_operator.builders.groups import pod_groups
from trimtab_operator.builders.pods import pod_manifest
from trimtab_operator.model.plan import PodPlan
from trimtab_operator.model.resolved import Resolved

Make = Callable[..., Resolved]

UID = "0f4e6c1a-3f5b-4b0e-9d52-1d6a3c1f7a10"


def plans_of(
    resolved: Resolved, *, rollouts: int, rewards: int, incarnations: Mapping[str, int]
) -> list[PodPlan]:
    """Every pod of the job; a unit that `incarnations` has not is at its first."""
    groups = pod_groups(resolved, rollout_replicas=rollouts, reward_replicas=rewards)
    return [
        PodPlan(
            job=resolved.resolved_job.job.name,
            job_uid=resolved.job_uid,
            group=group.name,
            role=group.roles[0],
            replica=replica,
            node=node,
            incarnation=incarnations.get(f"{group.name}-{replica}", 1),
            attempt=resolved.attempt,
        )
        for group in groups
        for replica in range(group.replicas)
        for node in range(group.nodes)
    ]


def pods(resolved: Resolved, *, rollouts: int = 1, **incarnations: int) -> dict[str, dict[str, Any]]:
    at = {name.replace("_", "-"): number for name, number in incarnations.items()}
    plans = plans_of(resolved, rollouts=rollouts, rewards=1, incarnations=at)
    return {plan.hostname: pod_manifest(plan, resolved) for plan in plans}


def main(pod: Mapping[str, Any]) -> dict[str, Any]:
    container: dict[str, Any] = pod["spec"]["containers"][0]
    assert container["name"] == "trimtab"
    return container


def env(pod: Mapping[str, Any]) -> dict[str, Any]:
    variables = main(pod)["env"]
    names = [variable["name"] for variable in variables]
    assert len(names) == len(set(names))
    return {variable["name"]: variable.get("value", variable.get("valueFrom")) for variable in variables}


def mounted(pod: Mapping[str, Any]) -> dict[str, str]:
    volumes = {volume["name"] for volume in pod["spec"]["volumes"]}
    mounts = {mount["mountPath"]: mount["name"] for mount in main(pod)["volumeMounts"]}
    assert set(mounts.values()) <= volumes
    return mounts


def volume(pod: Mapping[str, Any], name: str) -> dict[str, Any]:
    found: dict[str, Any] = next(each for each in pod["spec"]["volumes"] if each["name"] == name)
    return found


# What makes a pod the job's


def test_pod_is_found_by_its_labels_and_its_name(make: Make) -> None:
    pod = pods(make(roles__actor__nodes=2), actor_0=3)["actor-0-1"]
    assert pod["metadata"]["labels"] == {
        "app.kubernetes.io/managed-by": "trimtab",
        "trimtab.dev/job": "sums",
        "trimtab.dev/job-uid": UID,
        "trimtab.dev/role": "actor",
        "trimtab.dev/pod-group": "actor",
        "trimtab.dev/replica": "0",
        "trimtab.dev/node": "1",
        "trimtab.dev/incarnation": "3",
        "trimtab.dev/attempt": "1001",
    }
    assert pod["metadata"]["name"].startswith("sums-actor-0-1-")
    assert pod["metadata"]["ownerReferences"][0]["uid"] == UID
    assert (pod["spec"]["hostname"], pod["spec"]["subdomain"]) == ("actor-0-1", "sums")
    assert pod["spec"]["restartPolicy"] == "Never"


def test_pod_tells_its_agent_who_it_is(make: Make) -> None:
    variables = env(pods(make(), rollouts=3, rollout_2=5)["rollout-2-0"])
    assert variables["TRIMTAB_HOST"] == {"fieldRef": {"fieldPath": "status.podIP"}}
    told = PodEnvironment.from_environ(variables | {"TRIMTAB_HOST": "10.1.2.3"})
    assert (told.role, told.replica, told.node, told.incarnation) == ("rollout", 2, 0, 5)
    assert told.job_path == Path("/etc/trimtab/job/job.json")
    assert told.coordinator == "coordinator-0-0.sums.team-a.svc.cluster.local:7070"
    assert told.host == "10.1.2.3"
    assert told.termination_log == Path("/dev/termination-log")
    assert told.launcher_pid is None
    assert variables["TRIMTAB_TLS_DIR"] == "/etc/trimtab/tls"
    assert main(pods(make())["rollout-0-0"])["terminationMessagePath"] == "/dev/termination-log"


def test_gauges_have_a_named_port_but_on_the_hosts_network(make: Make) -> None:
    for pod in pods(make()).values():
        ports = {port["name"]: port["containerPort"] for port in main(pod)["ports"]}
        assert ports["metrics"] == int(env(pod)["TRIMTAB_METRICS_PORT"])
    rdma = {"rdma": {"resources": {"rdma/hca": "1"}, "hostNetwork": True}}
    shared = pods(make(roles__actor={"gpusPerNode": 8}, scheduling=rdma))["actor-0-0"]
    assert shared["spec"]["hostNetwork"]
    assert "ports" not in main(shared)
    assert "TRIMTAB_METRICS_PORT" not in env(shared)


def test_pod_of_another_cluster_domain_dials_that(make: Make) -> None:
    variables = env(pods(make(settings={"clusterDomain": "corp.example"}))["actor-0-0"])
    assert variables["TRIMTAB_COORDINATOR"] == "coordinator-0-0.sums.team-a.svc.corp.example:7070"


def test_pods_differ_in_their_place_alone(make: Make) -> None:
    one, two = pods(make(), rollouts=2)["rollout-0-0"], pods(make(), rollouts=2)["rollout-1-0"]
    assert one["spec"]["volumes"] == two["spec"]["volumes"]
    changed = {name for name in env(one) if env(one)[name] != env(two)[name]}
    assert changed == {"TRIMTAB_REPLICA"}


def test_rendering_a_pod_does_not_change_those_rendered_before(make: Make) -> None:
    resolved = make()
    before = json.dumps(pods(resolved, rollouts=2)["rollout-0-0"])
    rendered = pods(resolved, rollouts=2, rollout_0=2, rollout_1=7)
    assert env(rendered["rollout-0-0"])["TRIMTAB_INCARNATION"] == "2"
    assert json.dumps(pods(resolved, rollouts=2)["rollout-0-0"]) == before


def test_rendering_follows_the_resolved_spec_and_not_one_of_the_same_name(make: Make) -> None:
    one, two = make(roles__actor__image="mine:1"), make(roles__actor__image="mine:2")
    assert one.name == two.name
    assert main(pods(one)["actor-0-0"])["image"] == "mine:1"
    assert main(pods(two)["actor-0-0"])["image"] == "mine:2"


def test_rendering_is_cheap(make: Make) -> None:
    """Well below 2 ms a pod, also the first of its role: a 6-pod job within 12 ms on a slow machine."""
    times = []
    for index in range(5):
        resolved = make(roles__actor__nodes=2, seed=index)
        begun = time.perf_counter()
        assert len(pods(resolved, rollouts=2)) == 6
        times.append(time.perf_counter() - begun)
    assert min(times) < 0.012


# Images, resources, accelerators


def test_image_of_the_job_comes_before_the_platforms(make: Make) -> None:
    rendered = pods(make(roles__rollout__image="mine:1"))
    images = {name: main(pod)["image"] for name, pod in rendered.items()}
    assert images == {
        "coordinator-0-0": "registry.test/control:1",
        "actor-0-0": "registry.test/worker:1",
        "rollout-0-0": "mine:1",
        "reward-0-0": "registry.test/control:1",
    }


def test_pull_policy_is_the_platforms_or_kubernetes_own(make: Make) -> None:
    rendered = pods(make(settings={"roles__actor__imagePullPolicy": "Always"}))
    assert main(rendered["actor-0-0"])["imagePullPolicy"] == "Always"
    assert "imagePullPolicy" not in main(rendered["rollout-0-0"])


def test_resources_of_the_job_replace_the_platforms_one_by_one(make: Make) -> None:
    platform = {"requests": {"cpu": "1", "memory": "1Gi"}, "limits": {"cpu": "2", "memory": "2Gi"}}
    job = {"requests": {"cpu": 8}}
    resolved = make(settings={"roles__actor__resources": platform}, roles__actor__resources=job)
    assert main(pods(resolved)["actor-0-0"])["resources"] == {
        "requests": {"memory": "1Gi", "cpu": "8"},
        "limits": {"memory": "2Gi"},
    }


def test_gpus_are_limits_of_the_roles_that_ask_for_them(make: Make) -> None:
    rendered = pods(make(roles={"actor": {"gpusPerNode": 4}}))
    assert main(rendered["actor-0-0"])["resources"] == {"limits": {"nvidia.com/gpu": "4"}}
    assert env(rendered["actor-0-0"])["NCCL_DEBUG"] == "WARN"
    for name in ("coordinator-0-0", "rollout-0-0", "reward-0-0"):
        assert main(rendered[name])["resources"] == {}
        assert env(rendered[name])["NVIDIA_VISIBLE_DEVICES"] == "void"
        assert "NCCL_DEBUG" not in env(rendered[name])


def test_gpus_of_another_name_are_asked_for_by_it(make: Make) -> None:
    scheduling = {"accelerator": {"resource": {"name": "amd.com/gpu"}}}
    rendered = pods(make(roles={"actor": {"gpusPerNode": 2}}, scheduling=scheduling))
    assert main(rendered["actor-0-0"])["resources"]["limits"] == {"amd.com/gpu": "2"}


def test_gpus_of_a_device_class_are_claimed(make: Make) -> None:
    scheduling = {"accelerator": {"deviceClass": {"name": "gpu.nvidia.com"}}}
    rendered = pods(make(roles={"actor": {"gpusPerNode": 2}}, scheduling=scheduling))
    actor = rendered["actor-0-0"]
    assert actor["spec"]["resourceClaims"] == [{"name": "gpu", "resourceClaimTemplateName": "sums-gpu-actor"}]
    assert main(actor)["resources"] == {"claims": [{"name": "gpu"}]}
    assert "resourceClaims" not in rendered["rollout-0-0"]["spec"]


@pytest.mark.parametrize(
    ("role", "size"),
    [
        ({}, "1Gi"),
        ({"gpusPerNode": 1}, "16Gi"),
        ({"gpusPerNode": 1, "sharedMemory": "1536Mi"}, "1536Mi"),
    ],
)
def test_shared_memory_is_sized(make: Make, role: dict[str, Any], size: str) -> None:
    actor = pods(make(roles={"actor": role}))["actor-0-0"]
    assert volume(actor, mounted(actor)["/dev/shm"])["emptyDir"] == {"medium": "Memory", "sizeLimit": size}


def test_rdma_profile_is_for_pods_with_gpus(make: Make) -> None:
    rdma = {"resources": {"rdma/hca": "1"}, "hostNetwork": True}
    rendered = pods(make(roles={"actor": {"gpusPerNode": 8}}, scheduling={"rdma": rdma}))
    actor, coordinator = rendered["actor-0-0"], rendered["coordinator-0-0"]
    assert main(actor)["securityContext"]["capabilities"] == {"drop": ["ALL"], "add": ["IPC_LOCK"]}
    assert main(actor)["resources"]["limits"] == {"nvidia.com/gpu": "8", "rdma/hca": "1"}
    assert actor["spec"]["hostNetwork"] is True
    assert actor["spec"]["dnsPolicy"] == "ClusterFirstWithHostNet"
    assert "add" not in main(coordinator)["securityContext"]["capabilities"]
    assert "hostNetwork" not in coordinator["spec"]


@pytest.mark.parametrize(
    ("resources", "gpus", "threads"),
    [
        ({"limits": {"cpu": "8"}}, 0, "8"),
        ({"limits": {"cpu": "8"}}, 4, "2"),
        ({"requests": {"cpu": "2500m"}}, 0, "2"),
        ({"requests": {"cpu": "500m"}}, 0, "1"),
        ({"requests": {"cpu": "2"}, "limits": {"cpu": "6"}}, 0, "6"),
        ({"limits": {"cpu": "0.5k"}}, 0, "500"),
        ({"limits": {"cpu": "1Ki"}}, 0, "1024"),
        ({}, 0, None),
    ],
)
def test_threads_of_a_rank_are_its_share_of_the_cpus(
    make: Make, resources: dict[str, Any], gpus: int, threads: str | None
) -> None:
    resolved = make(roles={"actor": {"gpusPerNode": gpus, "resources": resources}})
    assert env(pods(resolved)["actor-0-0"]).get("OMP_NUM_THREADS") == threads


# Security


def test_every_pod_meets_the_restricted_standard(make: Make) -> None:
    for pod in pods(make()).values():
        spec = pod["spec"]
        assert spec["automountServiceAccountToken"] is False
        assert spec["enableServiceLinks"] is False
        assert spec["securityContext"] == {
            "runAsNonRoot": True,
            "runAsUser": 65532,
            "runAsGroup": 65532,
            "fsGroup": 65532,
            "fsGroupChangePolicy": "OnRootMismatch",
            "seccompProfile": {"type": "RuntimeDefault"},
        }
        assert main(pod)["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }


def test_each_side_mounts_its_own_keys_alone(make: Make) -> None:
    rendered = pods(make())
    keys = {}
    for name, pod in rendered.items():
        secret = volume(pod, mounted(pod)["/etc/trimtab/tls"])["secret"]
        assert secret["secretName"] == "sums-tls"
        keys[name] = {item["path"] for item in secret["items"]}
    both = {"ca.crt", "curve-server.pub", "curve-client.pub"}
    coordinator = keys.pop("coordinator-0-0")
    assert coordinator - both == {"coordinator.crt", "coordinator.key", "curve-server.key"}
    for worker in keys.values():
        assert worker - both == {"worker.crt", "worker.key", "curve-client.key"}


def test_keys_are_readable_without_a_group_of_the_volumes(make: Make) -> None:
    actor = pods(make(settings={"fsGroup": None}))["actor-0-0"]
    assert "fsGroup" in pods(make())["actor-0-0"]["spec"]["securityContext"]
    # `None` removes the entry, which leaves the default: so by hand.
    settings = make().settings.model_copy(update={"fs_group": None})
    actor = pods(make().model_copy(update={"settings": settings, "name": "other"}))["actor-0-0"]
    assert "fsGroup" not in actor["spec"]["securityContext"]
    assert volume(actor, "trimtab-tls")["secret"]["defaultMode"] == 0o444


def test_pod_reads_of_its_config_map_the_job_alone(make: Make) -> None:
    actor = pods(make())["actor-0-0"]
    config = volume(actor, mounted(actor)["/etc/trimtab/job"])["configMap"]
    assert config == {"name": make().name, "items": [{"key": "job.json", "path": "job.json"}]}


# Environment, network, volumes


def test_variables_of_the_job_win_over_the_platforms_and_the_built_in(make: Make) -> None:
    platform = [{"name": "HF_HOME", "value": "/platform"}, {"name": "NCCL_DEBUG", "value": "INFO"}]
    resolved = make(
        settings={"roles__actor__env": platform},
        roles__actor={"gpusPerNode": 1, "env": [{"name": "HF_HOME", "value": "/job"}]},
    )
    variables = env(pods(resolved)["actor-0-0"])
    assert variables["HF_HOME"] == "/job"
    assert variables["NCCL_DEBUG"] == "INFO"
    assert env(pods(resolved)["rollout-0-0"])["HF_HOME"] == "/tmp/huggingface"


def test_variable_from_a_secret_is_passed_on(make: Make) -> None:
    source = {"secretKeyRef": {"name": "hub", "key": "token"}}
    resolved = make(roles__actor__env=[{"name": "HF_TOKEN", "valueFrom": source}])
    assert {"name": "HF_TOKEN", "valueFrom": source} in main(pods(resolved)["actor-0-0"])["env"]


def test_variables_may_refer_to_those_that_the_operator_sets(make: Make) -> None:
    names = list(
        env(pods(make(roles__actor__env=[{"name": "MINE", "value": "$(TRIMTAB_HOST)"}]))["actor-0-0"])
    )
    assert names.index("TRIMTAB_HOST") < names.index("MINE")


def test_everything_that_writes_has_a_folder_that_is_writable(make: Make) -> None:
    for pod in pods(make()).values():
        assert volume(pod, mounted(pod)["/tmp"])["emptyDir"] == {}
        variables = env(pod)
        for name in ("HOME", "HF_HOME", "VLLM_CACHE_ROOT", "TRITON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR"):
            assert variables[name].startswith("/tmp")


def test_proxy_is_set_in_both_cases_and_never_for_the_jobs_own_pods(make: Make) -> None:
    proxy = {"http": "http://p:1", "https": "http://p:2", "noProxy": "corp.example"}
    variables = env(pods(make(settings={"proxy": proxy}))["actor-0-0"])
    for name in ("HTTP_PROXY", "http_proxy"):
        assert variables[name] == "http://p:1"
    for name in ("HTTPS_PROXY", "https_proxy"):
        assert variables[name] == "http://p:2"
    for name in ("NO_PROXY", "no_proxy"):
        excluded = variables[name].split(",")
        assert "corp.example" in excluded
        host = variables["TRIMTAB_COORDINATOR"].partition(":")[0]
        assert any(host.endswith(suffix) for suffix in excluded)
    assert not {"HTTP_PROXY", "NO_PROXY"} & env(pods(make())["actor-0-0"]).keys()


def test_certificate_authorities_are_mounted_and_named(make: Make) -> None:
    actor = pods(make(settings={"caBundleConfigMap": "corp-ca"}))["actor-0-0"]
    assert volume(actor, mounted(actor)["/etc/trimtab/ca"])["configMap"]["name"] == "corp-ca"
    for name in ("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "GIT_SSL_CAINFO"):
        assert env(actor)[name] == "/etc/trimtab/ca/ca.crt"


def test_storage_that_the_operator_claims_is_mounted_in_every_pod(make: Make) -> None:
    for pod in pods(make()).values():
        assert volume(pod, mounted(pod)["/trimtab/run"])["persistentVolumeClaim"] == {"claimName": "sums-run"}


def test_storage_on_a_volume_of_the_job_is_mounted_in_every_pod(make: Make) -> None:
    resolved = make(
        storage={"volume": {"name": "runs", "subPath": "team-a"}},
        volumes=[{"name": "runs", "nfs": {"server": "s", "path": "/x"}}],
    )
    for pod in pods(resolved).values():
        mount = next(m for m in main(pod)["volumeMounts"] if m["mountPath"] == "/trimtab/run")
        assert mount == {"name": "runs", "mountPath": "/trimtab/run", "subPath": "team-a"}
        assert volume(pod, "runs")["nfs"] == {"server": "s", "path": "/x"}


def test_volumes_of_the_job_replace_the_operators_where_they_are_mounted(make: Make) -> None:
    resolved = make(
        volumes=[{"name": "scratch", "hostPath": {"path": "/nvme"}}],
        volumeMounts=[{"name": "scratch", "mountPath": "/tmp/"}],
    )
    actor = pods(resolved)["actor-0-0"]
    assert [m["name"] for m in main(actor)["volumeMounts"] if m["mountPath"].startswith("/tmp")] == [
        "scratch"
    ]
    assert "trimtab-tmp" not in {each["name"] for each in actor["spec"]["volumes"]}


# Scheduling


def test_scheduling_of_the_job_adds_to_the_platforms_and_wins(make: Make) -> None:
    resolved = make(
        settings={
            "priorityClassName": "normal",
            "schedulerName": "platform",
            "imagePullSecrets": ["shared"],
            "roles__actor": {
                "image": "w:1",
                "nodeSelector": {"pool": "gpu", "zone": "a"},
                "tolerations": [{"key": "gpu", "operator": "Exists"}],
                "affinity": {"podAffinity": {"x": 1}, "nodeAffinity": {"x": 1}},
            },
        },
        scheduling={
            "priorityClassName": "high",
            "runtimeClassName": "nvidia",
            "nodeSelector": {"zone": "b"},
            "tolerations": [{"key": "team", "value": "a"}],
            "affinity": {"nodeAffinity": {"x": 2}},
            "imagePullSecrets": ["mine", "shared"],
        },
    )
    spec = pods(resolved)["actor-0-0"]["spec"]
    assert spec["nodeSelector"] == {"pool": "gpu", "zone": "b"}
    assert spec["tolerations"] == [{"key": "gpu", "operator": "Exists"}, {"key": "team", "value": "a"}]
    assert spec["affinity"] == {"podAffinity": {"x": 1}, "nodeAffinity": {"x": 2}}
    assert spec["imagePullSecrets"] == [{"name": "shared"}, {"name": "mine"}]
    assert (spec["priorityClassName"], spec["runtimeClassName"], spec["schedulerName"]) == (
        "high",
        "nvidia",
        "platform",
    )


def test_scheduling_that_nobody_asked_for_is_left_out(make: Make) -> None:
    fields = {
        "nodeSelector",
        "tolerations",
        "affinity",
        "priorityClassName",
        "hostNetwork",
        "imagePullSecrets",
    }
    assert not fields & pods(make())["actor-0-0"]["spec"].keys()


def test_spread_constraint_without_a_selector_spreads_the_roles_pods(make: Make) -> None:
    constraint = {"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule"}
    own = constraint | {"topologyKey": "rack", "labelSelector": {"matchLabels": {"a": "b"}}}
    spec = pods(make(scheduling={"topologySpreadConstraints": [constraint, own]}))["actor-0-0"]["spec"]
    first, second = spec["topologySpreadConstraints"]
    assert first["labelSelector"]["matchLabels"] == {
        "trimtab.dev/job-uid": UID,
        "trimtab.dev/role": "actor",
    }
    assert second["labelSelector"] == {"matchLabels": {"a": "b"}}


@pytest.mark.parametrize(
    ("deadlines", "grace"),
    [({"stopGraceSeconds": 60, "checkpointSeconds": 200.5}, 261), ({}, 600)],
)
def test_actor_has_the_time_to_leave_with_a_checkpoint(
    make: Make, deadlines: dict[str, float], grace: int
) -> None:
    rendered = pods(make(deadlines=deadlines))
    times = {name: pod["spec"]["terminationGracePeriodSeconds"] for name, pod in rendered.items()}
    assert times.pop("actor-0-0") == grace
    assert set(times.values()) == {30}


# Templates


def test_template_of_the_job_comes_over_the_platforms_and_over_the_fields(make: Make) -> None:
    resolved = make(
        settings={
            "roles__actor__podTemplate": {
                "metadata": {"annotations": {"who": "platform"}, "labels": {"cost": "1"}},
                "spec": {"terminationGracePeriodSeconds": 10, "nodeSelector": {"pool": "platform"}},
            }
        },
        scheduling={"nodeSelector": {"pool": "job"}},
        roles__actor__podTemplate={
            "metadata": {"annotations": {"who": "job"}},
            "spec": {"terminationGracePeriodSeconds": 20},
        },
    )
    pod = pods(resolved)["actor-0-0"]
    assert pod["metadata"]["annotations"]["who"] == "job"
    assert pod["metadata"]["labels"]["cost"] == "1"
    assert pod["spec"]["terminationGracePeriodSeconds"] == 20
    assert pod["spec"]["nodeSelector"] == {"pool": "platform"}
    assert "who" not in pods(resolved)["rollout-0-0"]["metadata"]["annotations"]


def test_sidecars_keep_their_own_settings_and_stand_after_the_main_container(make: Make) -> None:
    sidecar = {"name": "logs", "image": "fluent:1", "securityContext": {"runAsUser": 7}}
    late = {"name": "exporter", "image": "e:1", "restartPolicy": "Always"}
    template = {"spec": {"containers": [sidecar], "initContainers": [late]}}
    pod = pods(make(roles__actor__podTemplate=template))["actor-0-0"]
    assert pod["spec"]["containers"][1:] == [sidecar]
    assert pod["spec"]["initContainers"] == [late]
    assert pod["metadata"]["annotations"]["kubectl.kubernetes.io/default-container"] == "trimtab"
    main(pod)


def test_template_wraps_the_command_and_keeps_the_rest(make: Make) -> None:
    wrapped = {"name": "trimtab", "command": ["nsys", "profile", "trimtab", "agent"]}
    pod = pods(make(roles__actor__podTemplate={"spec": {"containers": [wrapped]}}))["actor-0-0"]
    assert main(pod)["command"] == ["nsys", "profile", "trimtab", "agent"]
    assert env(pod)["TRIMTAB_ROLE"] == "actor"
    assert main(pods(make())["actor-0-0"])["command"] == ["trimtab", "agent"]


def test_template_that_removes_variables_leaves_those_of_the_pods_place(make: Make) -> None:
    template = {"metadata": None, "spec": {"containers": [{"name": "trimtab", "env": None}]}}
    pod = pods(make(roles__actor__podTemplate=template))["actor-0-0"]
    assert {name.partition("_")[0] for name in env(pod)} == {"TRIMTAB"}
    assert pod["metadata"]["labels"]["trimtab.dev/role"] == "actor"
