import pytest

from trimtab.errors import ExitCode
from trimtab.local.policy import RestartBudget, Verdict, describe_exit, judge

CASES = [
    ("coordinator", 0, Verdict.JOB_DONE),
    ("coordinator", ExitCode.USER_ERROR, Verdict.JOB_FAILED),
    ("coordinator", ExitCode.OUT_OF_MEMORY, Verdict.JOB_FAILED),
    ("coordinator", ExitCode.JOB_FAILED, Verdict.JOB_FAILED),
    ("coordinator", ExitCode.INTERNAL, Verdict.RESTART),
    ("coordinator", 137, Verdict.RESTART),
    ("rollout", 0, Verdict.LEFT),
    ("rollout", 137, Verdict.RESTART),
    ("rollout", ExitCode.OUT_OF_MEMORY, Verdict.RESTART),
    ("actor", ExitCode.COORDINATOR_LOST, Verdict.RESTART),
    ("actor", ExitCode.RESTART_REQUESTED, Verdict.RESTART_FREE),
    ("reward", ExitCode.USER_ERROR, Verdict.JOB_FAILED),
    ("actor", ExitCode.REFUSED, Verdict.JOB_FAILED),
]


@pytest.mark.parametrize(("role", "code", "verdict"), CASES)
def test_judge(role: str, code: int, verdict: Verdict) -> None:
    assert judge(role, code) is verdict


def test_budget_waits_longer_each_time_and_runs_out() -> None:
    budget = RestartBudget(max_restarts=3)
    assert [budget.charge() for _ in range(5)] == [0.5, 1.0, 2.0, None, None]


def test_budget_comes_back_with_a_finished_step() -> None:
    budget = RestartBudget(max_restarts=1)
    budget.progressed(0)
    assert budget.charge() == 0.5
    budget.progressed(0)
    assert budget.charge() is None
    budget.progressed(1)
    assert budget.charge() == 0.5


def test_budget_is_not_given_back_when_a_restarted_coordinator_counts_up_to_where_it_was() -> None:
    budget = RestartBudget(max_restarts=1)
    budget.progressed(5)
    budget.charge()
    for step in (0, 5):
        budget.progressed(step)
    assert budget.charge() is None


def test_budget_pause_is_bounded() -> None:
    budget = RestartBudget(max_restarts=100)
    assert max(pause for _ in range(100) if (pause := budget.charge()) is not None) == 30.0


@pytest.mark.parametrize(
    ("code", "text"),
    [(137, "was ended by SIGKILL"), (64, "exited with code 64 (user error)"), (3, "exited with code 3")],
)
def test_describe_exit(code: int, text: str) -> None:
    assert describe_exit(code) == text
