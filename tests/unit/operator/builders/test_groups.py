from collections.abc import Callable

from trimtab_operator.builders.groups import pod_groups, rollout_selector
from trimtab_operator.model.resolved import Resolved

Make = Callable[..., Resolved]


def test_pod_groups_follow_the_live_counts_and_the_resolved_shape(make: Make) -> None:
    resolved = make(
        roles__actor={"nodes": 2, "gpusPerNode": 4}, roles__rollout={"replicas": 2, "minReplicas": 1}
    )
    groups = {g.name: g for g in pod_groups(resolved, rollout_replicas=5, reward_replicas=3)}
    assert [(g.replicas, g.nodes, g.gpus_per_node) for g in groups.values()] == [
        (1, 1, 0), (1, 2, 4), (5, 1, 0), (3, 1, 0),
    ]  # fmt: skip
    assert all(group.roles == (name,) for name, group in groups.items())


def test_rollout_selector_names_job_and_role() -> None:
    assert rollout_selector("u-1") == "trimtab.dev/job-uid=u-1,trimtab.dev/role=rollout"
