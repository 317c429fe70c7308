from collections.abc import Callable
from typing import Any

import pytest

from trimtab.api import JobError
from trimtab_operator.model.resolved import Resolved

Make = Callable[..., Resolved]


def problems(make: Make, settings: dict[str, Any] | None = None, **changes: Any) -> dict[str, str]:
    with pytest.raises(JobError) as caught:
        make(settings=settings, **changes)
    return {problem.path: problem.message for problem in caught.value.problems}


MOUNT = "spec.containers[0].volumeMounts[0].mountPath"
GPU = "spec.containers[0].resources.limits['nvidia.com/gpu']"


def main(**fields: Any) -> dict[str, Any]:
    return {"spec": {"containers": [{"name": "trimtab", **fields}]}}


@pytest.mark.parametrize(
    ("template", "path"),
    [
        ({"containers": []}, "containers"),
        ({"metadata": {"name": "x"}}, "metadata.name"),
        ({"metadata": {"labels": {"trimtab.dev/role": "x"}}}, "metadata.labels['trimtab.dev/role']"),
        ({"spec": {"restartPolicy": "Always"}}, "spec.restartPolicy"),
        ({"spec": {"hostname": "x"}}, "spec.hostname"),
        ({"spec": {"subdomain": "x"}}, "spec.subdomain"),
        ({"spec": {"activeDeadlineSeconds": 3}}, "spec.activeDeadlineSeconds"),
        ({"spec": {"volumes": [{"name": "trimtab-tls", "emptyDir": {}}]}}, "spec.volumes[0].name"),
        (main(env=[{"name": "TRIMTAB_ROLE", "value": "x"}]), "spec.containers[0].env[0].name"),
        (main(volumeMounts=[{"name": "v", "mountPath": "/etc"}]), MOUNT),
        (main(volumeMounts=[{"name": "v", "mountPath": "/etc/trimtab/tls/x"}]), MOUNT),
        (main(terminationMessagePath="/x"), "spec.containers[0].terminationMessagePath"),
        (main(restartPolicy="OnFailure"), "spec.containers[0].restartPolicy"),
        (main(restartPolicyRules=[{"action": "Restart"}]), "spec.containers[0].restartPolicyRules"),
        (main(resources={"limits": {"nvidia.com/gpu": 1}}), GPU),
        ({"spec": {"containers": [{"name": "s", "env": [{}]}]}}, "spec.containers[0].env[0]"),
        (main(**{"$patch": "delete"}), ""),
        (main(volumeMounts=None), ""),
        ({"spec": {"volumes": [{"$patch": "replace"}]}}, ""),
    ],
)  # fmt: skip
def test_template_that_would_break_the_pod_is_refused(
    make: Make, template: dict[str, Any], path: str
) -> None:
    where = f"spec.roles.actor.podTemplate.{path}".rstrip(".")
    assert where in problems(make, roles__actor__podTemplate=template)


def test_template_of_the_platform_is_judged_the_same(make: Make) -> None:
    found = problems(make, settings={"roles__reward__podTemplate": {"spec": {"restartPolicy": "Always"}}})
    assert set(found) == {"settings.roles.reward.podTemplate.spec.restartPolicy"}


def test_template_may_wrap_the_command_and_change_tmp(make: Make) -> None:
    template = {
        "metadata": {"labels": {"team": "a"}, "annotations": {"note": "x"}},
        "spec": {
            "terminationGracePeriodSeconds": 5,
            "volumes": [{"name": "trimtab-tmp", "emptyDir": {"sizeLimit": "5Gi"}}],
            "containers": [{"name": "trimtab", "command": ["nsys", "trimtab", "agent"]}],
        },
    }
    assert make(roles__actor__podTemplate=template).attempt == 1001


def test_fields_of_the_job_that_would_break_the_pod_are_refused(make: Make) -> None:
    found = problems(
        make,
        volumes=[{"name": "trimtab-x", "emptyDir": {}}, {"name": "v", "emptyDir": {}}],
        volumeMounts=[{"name": "v", "mountPath": "/trimtab/run"}],
        roles__actor={
            "env": [{"name": "TRIMTAB_HOST", "value": "x"}],
            "resources": {"limits": {"nvidia.com/gpu": "2"}},
        },
    )
    assert set(found) == {
        "spec.volumes[0].name",
        "spec.volumeMounts[0].mountPath",
        "spec.roles.actor.env[0].name",
        "spec.roles.actor.resources.limits['nvidia.com/gpu']",
    }
