from collections import Counter
from collections.abc import Callable

from trimtab_operator.builders.groups import pod_groups, pod_plans, rollout_selector, unit_names
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


def test_pod_plans_have_one_pod_per_place_at_its_units_incarnation(make: Make) -> None:
    resolved = make(roles__actor={"nodes": 3})
    plans = pod_plans(
        resolved, rollout_replicas=2, reward_replicas=1, incarnations={"actor-0": 4, "rollout-1": 2}
    )
    assert Counter(plan.role for plan in plans) == {"coordinator": 1, "actor": 3, "rollout": 2, "reward": 1}
    assert {plan.unit: plan.incarnation for plan in plans} == {
        "coordinator-0": 1, "actor-0": 4, "rollout-0": 1, "rollout-1": 2, "reward-0": 1,
    }  # fmt: skip
    assert {plan.node for plan in plans if plan.role == "actor"} == {0, 1, 2}
    assert all(plan.attempt == 1001 and plan.job_uid == resolved.job_uid for plan in plans)
    assert len({plan.name for plan in plans}) == len(plans)


def test_pod_plans_of_no_reward_replicas_leave_the_role_out(make: Make) -> None:
    plans = pod_plans(make(), rollout_replicas=1, reward_replicas=0, incarnations={})
    assert "reward" not in {plan.role for plan in plans}


def test_unit_names_are_those_of_the_plans(make: Make) -> None:
    resolved = make(roles__actor={"nodes": 2})
    plans = pod_plans(resolved, rollout_replicas=2, reward_replicas=2, incarnations={})
    names = unit_names(resolved, rollout_replicas=2, reward_replicas=2)
    assert names == tuple(dict.fromkeys(plan.unit for plan in plans))


def test_rollout_selector_names_job_and_role() -> None:
    assert rollout_selector("u-1") == "trimtab.dev/job-uid=u-1,trimtab.dev/role=rollout"
