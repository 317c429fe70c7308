"""What the job says of itself: phase, conditions, progress.

Read by `trimtab status`, the live view and the operator; written to `<run>/status.json` after each
step. Runs on the coordinator's loop.
"""

import json
import math
from collections.abc import Callable, Mapping
from pathlib import Path

from google.protobuf.json_format import MessageToDict

from trimtab.api import ResolvedJob
from trimtab.api.conditions import ConditionType, Phase, Reason
from trimtab.roles.coordinator.final_word import FinalWord, not_finite
from trimtab.roles.coordinator.journal import write_atomically
from trimtab.roles.coordinator.membership import ROLES, Members
from trimtab.v1 import control_pb2 as pb
from trimtab.v1 import job_control_pb2 as job_pb

ENDED = (Phase.COMPLETE, Phase.FAILED, Phase.STOPPED)
MAX_NAMED = 3
"""Workers that the activity names as having something to do."""


class StatusBoard:
    """Keeps the facts and renders them as a `JobStatus`."""

    def __init__(self, job: ResolvedJob, members: Members, *, total_steps: int) -> None:
        self._job = job
        self._members = members
        self.phase = Phase.STARTING
        self.end_reason: Reason | None = None
        self.end_message = ""
        self.total_steps = total_steps
        self.step = 0
        self.epoch = 0.0
        self.activity = "starting"
        self.outstanding: Callable[[], Mapping[str, int]] = dict
        """What is out for answers now, by worker."""
        self.metrics: dict[str, float] = {}
        self.step_times_s: list[float] = []
        self.checkpoint: tuple[str, int] = ("", -1)
        self.warnings: list[str] = []

    def note_step(self, step: int, *, epoch: float, metrics: Mapping[str, float]) -> None:
        """Take up a finished step."""
        self.step, self.epoch = step, epoch
        self.metrics = dict(metrics)
        self.step_times_s = [*self.step_times_s[-19:], metrics.get("timing_s/step", 0.0)]

    def keep_members(self) -> None:
        """The job is over: from now on show who was there until then, though they leave."""
        self._members = self._members.as_of_now()

    def render(self) -> job_pb.JobStatus:
        """The status now."""
        left = -1.0
        if self.step_times_s and self.phase not in ENDED:
            left = sum(self.step_times_s) / len(self.step_times_s) * max(0, self.total_steps - self.step)
        status = job_pb.JobStatus(
            name=self._job.job.metadata.name,
            attempt=self._job.attempt,
            training_identity=self._job.training_identity,
            phase=self.phase.value,
            activity=f"{self.activity}{_who_has(self.outstanding())}",
            step=self.step,
            total_steps=self.total_steps,
            epoch=self.epoch,
            seconds_left=left,
            metrics={k: v for k, v in self.metrics.items() if math.isfinite(v)},
            conditions=self._conditions(),
            checkpoint_path=self.checkpoint[0],
            checkpoint_step=self.checkpoint[1],
            warnings=self.warnings,
            reason=self.end_reason.value if self.end_reason is not None else "",
            message=self.end_message,
            not_finite=not_finite(self.metrics),
            missing=self._missing(),
        )
        desired = self._members.desired
        for role in ROLES:
            actor = role == "actor"  # counted in ranks, all of which it needs
            row = job_pb.RoleStatus(
                role=role,
                desired=desired.actor_ranks if actor else desired.of_role(role),
                min_desired=desired.actor_ranks if actor else desired.least(role),
                ready=len(self._members.of_role(role)),
                restarts=self._members.num_restarts[role],
            )
            status.roles.append(row)
        for restart in self._members.restart_requests():
            worker = pb.WorkerId(role=restart.role, replica=restart.replica, incarnation=restart.incarnation)
            status.restart_requests.append(job_pb.RestartRequest(worker=worker, reason=restart.reason))
        return status

    def save(self, path: Path) -> None:
        """Write the status where a person or `trimtab status` finds it after the end."""
        values = MessageToDict(self.render(), preserving_proto_field_name=True)
        write_atomically(path, json.dumps(values, indent=2).encode())

    def final_word(self) -> FinalWord:
        """How the job ended, once it has."""
        assert self.end_reason is not None
        return FinalWord(
            phase=self.phase,
            reason=self.end_reason,
            message=self.end_message,
            step=self.step,
            total_steps=self.total_steps,
            epoch=self.epoch,
            metrics=self.metrics,
            checkpoint=self.checkpoint,
        )

    def _missing(self) -> list[str]:
        return [name for role in ROLES for name in self._members.missing(role)]

    def _conditions(self) -> list[job_pb.Condition]:
        members, desired = self._members, self._members.desired
        waiting = self._missing()
        running = self.phase is Phase.RUNNING
        rollouts = len(members.of_role("rollout"))
        rewards = len(members.of_role("reward"))
        degraded = running and (rollouts < desired.min_rollouts or rewards < desired.min_rewards)
        bad = not_finite(self.metrics)
        idle = Reason.ACTOR_LOST if self.phase is Phase.RECOVERING else Reason.NOT_STARTED
        if self.phase in (Phase.STOPPING, Phase.STOPPED):
            idle = Reason.STOP_REQUESTED
        rows = [
            _condition(
                ConditionType.WORKERS_READY,
                not waiting,
                Reason.WAITING_FOR_WORKERS if waiting else Reason.ALL_REGISTERED,
                f"missing: {', '.join(waiting)}" if waiting else "",
            ),
            _condition(
                ConditionType.RUNNING,
                running,
                Reason.TAKING_STEPS if running else self.end_reason or idle,
                "",
            ),
            _condition(
                ConditionType.DEGRADED,
                degraded,
                Reason.BELOW_MIN_REPLICAS if degraded else Reason.ENOUGH_REPLICAS,
                f"{rollouts} rollout replicas of at least {desired.min_rollouts}, "
                f"{rewards} reward replicas of at least {desired.min_rewards}"
                if degraded
                else "",
            ),
            _condition(
                ConditionType.METRICS_HEALTHY,
                not bad,
                Reason.NOT_FINITE if bad else Reason.ALL_FINITE,
                f"not finite: {', '.join(bad)}" if bad else "",
            ),
        ]
        if self.end_reason is not None and self.phase in (Phase.COMPLETE, Phase.FAILED):
            name = ConditionType.COMPLETE if self.phase is Phase.COMPLETE else ConditionType.FAILED
            rows.append(_condition(name, holds=True, reason=self.end_reason, message=self.end_message))
        return rows


def _who_has(outstanding: Mapping[str, int]) -> str:
    """The workers that are waited for, those with the most first."""
    most = sorted(outstanding.items(), key=lambda item: (-item[1], item[0]))
    named = [f"{worker.partition('/')[0]} has {count}" for worker, count in most[:MAX_NAMED]]
    if len(most) > MAX_NAMED:
        named.append(f"{len(most) - MAX_NAMED} more have some")
    return f"; {', '.join(named)}" if named else ""


def _condition(kind: ConditionType, holds: bool, reason: Reason, message: str) -> job_pb.Condition:
    return job_pb.Condition(
        type=kind.value, status="True" if holds else "False", reason=reason.value, message=message
    )
