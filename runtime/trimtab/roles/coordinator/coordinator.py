"""The coordinator's life, on one asyncio loop.

    prepare -> bring up the actor -> [ validate / save / one step ]* -> finish
                    ^                            |
                    +------ the actor is lost ---+   (resume where the journal stands if it came back with
                    |                            |    what it held, else from the last checkpoint)
                    +-- its pods are evicted ----+   (checkpoint first, then it is sent away)

`Coordinator.run` is called by `main`. Whatever ends the job raises out of it or returns a phase; whatever
can be cured (a lost rollout, a lost actor, a coordinator that died) is dealt with inside.
"""

import asyncio
import logging
import time
from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, TypeVar

from trimtab.algorithms.grpo import grpo_step, kl_controller
from trimtab.api import ResolvedJob
from trimtab.api.conditions import Phase
from trimtab.comm.control import ControlServer, WorkerKey
from trimtab.comm.experience import ExperienceHub
from trimtab.episodes import Episode, Sample
from trimtab.errors import ExitCode, TrimtabError
from trimtab.observability.health import HealthMonitor
from trimtab.observability.prometheus import RoleGauges
from trimtab.observability.writer import MetricsWriter
from trimtab.rewards.pool import START_TIMEOUT_S
from trimtab.roles.coordinator.absence import watch_absence
from trimtab.roles.coordinator.actors import ActorLostError, ActorUnit
from trimtab.roles.coordinator.control import StopNow, Wishes
from trimtab.roles.coordinator.dispatch import WorkPool
from trimtab.roles.coordinator.guard import guarded, watch_actor, watch_failure
from trimtab.roles.coordinator.journal import Journal, Record
from trimtab.roles.coordinator.membership import RECONNECT_GRACE_S, Member, Members, Sizes
from trimtab.roles.coordinator.prepare import Prepared, prepare
from trimtab.roles.coordinator.routing import route_messages
from trimtab.roles.coordinator.samples import SampleKind, write_samples
from trimtab.roles.coordinator.saving import CheckpointKeeper
from trimtab.roles.coordinator.scoring import Scorer
from trimtab.roles.coordinator.source import EpisodeSource, Generator, RequestSettings
from trimtab.roles.coordinator.state import TrainingState
from trimtab.roles.coordinator.status import StatusBoard
from trimtab.roles.coordinator.step import StepContext
from trimtab.roles.coordinator.step_metrics import episode_metrics, rollout_metrics, timing_metrics
from trimtab.roles.coordinator.validation import validate
from trimtab.roles.coordinator.weights import WeightSync
from trimtab.v1 import control_pb2 as pb

log = logging.getLogger(__name__)
T = TypeVar("T")

SCORING_SLACK_S = START_TIMEOUT_S + 30.0
"""A scoring may wait for a reward worker that is being replaced, its imports included."""


class Coordinator:
    """Everything that one job has on its coordinator."""

    def __init__(
        self,
        job: ResolvedJob,
        *,
        instance: str,
        members: Members,
        board: StatusBoard,
        wishes: Wishes,
        server: ControlServer,
        hub: ExperienceHub,
        journal: Journal,
        arrival_s: float,
    ) -> None:
        """`journal` is owned by this start; `arrival_s` is how long a role's workers may take to be here."""
        self.job = job
        self.spec = job.job.spec
        self.members = members
        self.board = board
        self.wishes = wishes
        self._server = server
        self._hub = hub
        self._instance = instance
        self.run_dir = Path(job.run_dir)
        self._journal = journal
        self._record: Record | None = self._journal.read(attempt=job.attempt)
        sizes = self._journal.read_sizes(attempt=job.attempt)
        if sizes is not None:
            members.resize(Sizes(**sizes))
        self._arrival_s = arrival_s
        self._state = TrainingState()
        self._resumed = False
        self._dead_incarnation = -1
        self._actor_loaded = False
        """It has a model: that of `_state`, or in the middle of a step what the journal's stage says."""
        self._actor_ready = False
        """And everybody else that the job needs is here too."""
        self._actor_checkpoint = ""
        self._late = asyncio.Event()
        self.actor = ActorUnit(job, members, server, hub, instance=instance)
        self._keeper = CheckpointKeeper(job, self.actor, board, wishes)
        self.weights = WeightSync(job, members, server, self.actor, instance=instance, condemn=self.condemn)
        self.rollouts = self._pool("rollout")
        self.rewards = self._pool("reward")
        board.outstanding = lambda: self.rollouts.outstanding() | self.rewards.outstanding()
        self._controller = kl_controller(job.job)
        self._health = HealthMonitor(self.spec.tracking.health)
        self._writer = MetricsWriter(self.run_dir, tensorboard=self.spec.tracking.tensorboard)
        self._gauges = RoleGauges("coordinator")
        self._prepared: Prepared | None = None
        self._source: EpisodeSource | None = None
        self._generator: Generator | None = None
        self._background: list[asyncio.Task[None]] = []
        members.on_join.append(self._joined)
        members.on_leaving.append(self._leaving_said)

    # -- the life of the job ---------------------------------------------------------------------

    async def run(self) -> Phase:
        """Train to the end or to a stop. Raises UserError, OutOfMemoryError or another TrimtabError."""
        self._keeper.fence()
        reader = route_messages(self._hub, self.rollouts, self.rewards, self.actor)
        absence = watch_absence(self.members, timeout_s=self._arrival_s, in_use=lambda: self._actor_ready)
        self._background = [
            asyncio.create_task(work)
            for work in (
                reader,
                absence,
                self.rollouts.run(),
                self.rewards.run(),
                self._keep_up_late_rollouts(),
            )
        ]
        try:
            self._note("reading data")
            await self._guarded(self._open(), actor=False)
            return await self._train()
        finally:
            for task in self._background:
                task.cancel()
            await asyncio.gather(*self._background, return_exceptions=True)
            self._writer.close()

    async def _open(self) -> None:
        prepared = await asyncio.to_thread(prepare, self.job)
        self._prepared = prepared
        self.board.total_steps = prepared.total_steps
        if self._record is not None:  # so that nobody sees step 0 while an actor is waited for
            self.board.step = int(self._record.state["step"])
        rewards = [*self.spec.rewards, *((self.spec.validation and self.spec.validation.rewards) or ())]
        slowest = sum(reward.timeout_seconds for reward in rewards)
        scorer = Scorer(self.rewards, prepared.decode, timeout_s=slowest + SCORING_SLACK_S)
        self._generator = Generator(self.rollouts, scorer, job=self.job)
        self._source = EpisodeSource(
            prepared.sampler,
            prepared.train,
            self._generator,
            group_size=self._grpo.group_size,
        )

    async def _train(self) -> Phase:
        while True:
            try:
                if not self._actor_ready:
                    await self._guarded(self.wishes.within_grace(self._bring_up_actor()), actor=False)
                    await self._guarded(self.wishes.within_grace(self._bring_up_others()))
                if await self._guarded(self._advance()):
                    return Phase.STOPPED if self._stopping else Phase.COMPLETE
            except StopNow:
                log.warning("the grace is over: step %d is given up", self._state.step + 1)
                await self._give_up_step()
                await self._save_before_leaving()
                if self._stopping:
                    return Phase.STOPPED
                await self._see_off_actor()
            except ActorLostError as error:
                await self._actor_gone(error)

    async def _save_before_leaving(self) -> None:
        """Save what the actor holds, unless an update of a step that is given up may be in it."""
        untouched = self._record is not None and self._record.stage in ("idle", "generating")
        if not self._actor_loaded or not (self._actor_ready or untouched):
            return
        try:
            await self._guarded(self._keeper.save_if_new(self._state))
        except ActorLostError as error:
            log.warning("leaving the last checkpoint, %s: %s", self.board.checkpoint[0] or "none", error)

    async def _advance(self) -> bool:
        """One round of the loop; True when there is nothing more to do."""
        await self._validate_at_start()
        if self._mid_update:
            # The actor may hold its weights already: a checkpoint of the step before would be of neither.
            if not self._stopping:
                self.board.phase = Phase.RUNNING
            await self._step()
            return False
        self._take_wishes()
        done = self._state.step >= self._require(self._prepared).total_steps
        leaving = self.wishes.leave_reason is not None
        if done or self._stopping or leaving or self._keeper.due(self._state.step):
            await self._keeper.save_if_new(self._state)
        if done and self.spec.checkpoint.export_at_end:
            self._note("exporting the model")
            async with self.actor.lock:
                await self.actor.export(str(self.run_dir / "model"))
        if done or self._stopping:
            return True
        if leaving:
            await self._see_off_actor()
            return False
        self.board.phase = Phase.RUNNING
        await self._step()
        return False

    # -- the actor's coming and going ------------------------------------------------------------

    async def _bring_up_actor(self) -> None:
        self._note_missing("actor")
        await self.members.wait_for_role("actor", timeout_s=self._arrival_s)
        await self.members.wait_until(
            lambda: bool(self.members.actor_ranks()) and self.actor.incarnation > self._dead_incarnation,
            timeout_s=self._arrival_s,
            what=f"the actor to start again (incarnation above {self._dead_incarnation})",
        )
        self.members.forget_actor_loss()
        self._note("loading the model")
        # One that was here before may have gone on until its actor came to us; from then on it cannot.
        record = self._record = self._journal.read(attempt=self.job.attempt)
        if record is not None and record.actor_incarnation == self.actor.incarnation:
            log.info("taking step %d up again (%s)", int(record.state["step"]) + 1, record.stage)
            self._load(TrainingState.from_json(record.state))
            self._actor_checkpoint = record.actor_checkpoint
            await self._init_actor(record.actor_checkpoint)
            await self.actor.settle()
            self._resumed = record.stage != "idle"
            self.weights.version = self._state.weight_version
            if record.stage == "publishing":
                self.weights.version = int(record.metrics["weights/version"])
        else:
            await self._start_from_checkpoint()
        self._actor_loaded = True

    async def _bring_up_others(self) -> None:
        """Wait for the rollouts and rewards that the job needs at least, and publish what the actor holds."""
        for role in ("rollout", "reward"):
            self._note_missing(role)
            await self.members.wait_for_role(role, timeout_s=self._arrival_s)
        if not self._resumed:
            self._note("publishing weights")
            await self._publish()
        self._actor_ready = True
        self._late.set()

    async def _init_actor(self, checkpoint_path: str) -> int:
        total_steps = self._require(self._prepared).total_steps
        return await self.actor.init(checkpoint_path=checkpoint_path, total_steps=total_steps)

    async def _start_from_checkpoint(self) -> None:
        self._resumed = False
        found = await asyncio.to_thread(self._keeper.find)
        highest = max(self.weights.version, self._record.weight_version if self._record else 0)
        state, path = TrainingState(), ""
        if found is not None:
            state, path = TrainingState.from_json(found.coordinator_state()), str(found.actor_path)
            log.info("resuming from %s (step %d)", found.path, found.step)
        self._load(state)
        self._actor_checkpoint = path
        applied = await self._init_actor(path)
        if applied != self._state.step:
            raise TrimtabError(
                f"the actor stands at step {applied} after loading {path or 'the model'}, not {state.step}"
            )
        # A number that no engine has seen: what they serve, even their own copy of the model, is replaced.
        self.weights.version = max(highest, state.weight_version) + 1
        self._state = replace(self._state, weight_version=self.weights.version)
        self._write_idle()

    async def _actor_gone(self, error: ActorLostError) -> None:
        """After the loss: stop what is under way, and wait a moment for a unit that only lost its streams."""
        log.warning("the actor is lost: %s", error)
        self._actor_loaded = self._actor_ready = False
        self.board.phase = Phase.RECOVERING
        self._note("recovering from the loss of the actor")
        incarnation = self._record.actor_incarnation if self._record else -1
        await self._give_up_step()
        self.weights.forget_group()
        alive = self.members.of_role("actor")
        if not self.members.actor_lost.is_set():
            # All ranks are here, so it was a command that failed: what the unit holds cannot be trusted.
            self._dead_incarnation = max([incarnation, *(m.key.incarnation for m in alive)])
        else:
            await self._wait_for_return(incarnation)
        for member in self.members.of_role("actor"):
            if member.key.incarnation <= self._dead_incarnation:
                self.members.condemn(member.key, str(error))
                await self._server.shutdown_worker(member.key, str(error), ExitCode.RESTART_REQUESTED)
        if self.wishes.leave_incarnation <= self._dead_incarnation:
            self.wishes.actor_left()  # it wanted to go, and is gone: the next one is not to be sent away

    async def _see_off_actor(self) -> None:
        """Its pods are about to be ended and what it holds is saved: all ranks leave, and start again."""
        reason = self.wishes.leave_reason or "its pods are being ended"
        log.warning("sending the actor away after step %d: %s", self._state.step, reason)
        self._actor_loaded = self._actor_ready = False
        self.board.phase = Phase.RECOVERING
        self.weights.forget_group()
        for member in self.members.of_role("actor"):
            self._dead_incarnation = max(self._dead_incarnation, member.key.incarnation)
            self.members.condemn(member.key, reason)
            await self._server.shutdown_worker(member.key, reason, ExitCode.RESTART_REQUESTED)
        self.wishes.actor_left()

    async def _wait_for_return(self, incarnation: int) -> None:
        def settled() -> bool:
            return bool(self.members.actor_ranks())

        try:
            await self.members.wait_until(settled, timeout_s=RECONNECT_GRACE_S, what="the actor's streams")
        except TrimtabError:
            self._dead_incarnation = max(self._dead_incarnation, incarnation)
            return
        if self.actor.incarnation > incarnation:
            self._dead_incarnation = max(self._dead_incarnation, incarnation)

    async def _give_up_step(self) -> None:
        self.rollouts.cancel_all()
        self.rewards.cancel_all()
        command = pb.Command(
            key=f"abort/{self._instance}/{time.monotonic_ns()}",
            timeout_s=10.0,
            abort_generation=pb.AbortGeneration(),
        )
        calls = [self._server.call(m.key, command, timeout_s=10.0) for m in self.members.of_role("rollout")]
        for outcome in await asyncio.gather(*calls, return_exceptions=True):
            if isinstance(outcome, BaseException):
                log.warning("a rollout did not abort its requests: %s", outcome)

    # -- one step --------------------------------------------------------------------------------

    async def _step(self) -> None:
        source, record = self._require(self._source), self._require(self._record)
        step = self._state.step + 1
        source.settings = RequestSettings.of(self.spec, self._state.rollout_changes)
        self._require(self._generator).progress = self._show_progress
        context = StepContext(
            record,
            step=step,
            source=source,
            actor=self.actor,
            weights=self.weights,
            journal=self._journal,
            resumed=self._resumed,
            note=self._note,
            within_grace=self.wishes.within_grace,
        )
        started = time.monotonic()
        try:
            flow = await grpo_step(self.job.job, context, self._controller)
        finally:
            self._record = context.record
        step_s = time.monotonic() - started
        self._resumed = False
        taken = self._require(context.taken)
        metrics = {
            **flow,
            **context.metrics,
            **episode_metrics(
                taken,
                max_prompt_tokens=self.spec.data.max_prompt_tokens,
                weight_version=self.weights.version - 1,
            ),
        }
        ranks = self.members.desired.actor_ranks
        num_tokens = metrics["perf/total_num_tokens"]
        metrics |= timing_metrics(context.timings, step_s=step_s, num_tokens=num_tokens, num_ranks=ranks)
        metrics |= rollout_metrics(self.rollouts.take_counts(), len(self.members.of_role("rollout")))
        prepared = self._require(self._prepared)
        prepared.sampler.ack(taken.leases)
        metrics["training/global_step"] = float(step)
        metrics["training/epoch"] = prepared.sampler.epoch_progress
        if self._keeper.last_save_s:
            metrics["timing_s/save_checkpoint"], self._keeper.last_save_s = self._keeper.last_save_s, 0.0
        self._write_samples(step, taken.episodes, taken.samples, "train")
        self._write_samples(step, taken.tally.failed_episodes, taken.samples, "unscored")
        self._state = replace(
            self._state,
            num_tokens=self._state.num_tokens + int(num_tokens),
            elapsed_s=self._state.elapsed_s + step_s,
        )
        if self._validation_due(step):
            try:
                metrics |= await self.wishes.within_grace(self._validate(step))
            except StopNow:
                log.warning("the grace to stop is over: step %d goes without its validation", step)
        self._finish_step(step, metrics)

    def _finish_step(self, step: int, metrics: dict[str, float]) -> None:
        for warning in self._health.check(step, metrics):
            log.warning("%s", warning)
            self._writer.warn(warning)
            self.board.warnings.append(str(warning))
        metrics["health/warnings"] = float(len(self.board.warnings))
        self._writer.write(step, metrics)
        self._gauges.set_all(metrics)
        self._state = replace(
            self._state,
            step=step,
            weight_version=self.weights.version,
            sampler=self._require(self._prepared).sampler.state(),
            kl_controller=self._controller.state(),
            health=self._health.state(),
        )
        self._write_idle()
        self.board.note_step(step, epoch=metrics.get("training/epoch", 0.0), metrics=metrics)
        self.board.save(self.run_dir / "status.json")

    # -- validation and checkpoints --------------------------------------------------------------

    def _validation_due(self, step: int) -> bool:
        validation = self.spec.validation
        if validation is None:
            return False
        return step % validation.every_steps == 0 or step == self._require(self._prepared).total_steps

    async def _validate_at_start(self) -> None:
        validation = self.spec.validation
        if (
            validation is None
            or not validation.at_start
            or self._state.step > 0
            or self._state.validated_step >= 0
        ):
            return
        self.board.phase = Phase.RUNNING
        metrics = await self.wishes.within_grace(self._validate(0))
        self._writer.write(0, metrics)
        self.board.metrics = dict(metrics)
        self._write_idle()

    async def _validate(self, step: int) -> dict[str, float]:
        validation = self._require(self.spec.validation)
        self._note("validating")
        self._require(self._generator).progress = lambda done, total: self._note(
            f"validating ({done} of {total})"
        )
        settings = RequestSettings(
            sampling=validation.sampling.model_dump(mode="json", by_alias=True),
            max_tokens=validation.max_response_tokens or self.spec.training.max_response_tokens,
        )
        dataset = self._require(self._require(self._prepared).validation)
        result = await validate(
            dataset, self._require(self._generator), settings=settings, max_samples=validation.max_samples
        )
        samples = {sample.group_id: sample for sample, _ in result.episodes}
        self._write_samples(step, [e for _, e in result.episodes], samples, "validation")
        self._state = replace(self._state, validated_step=step)
        return result.metrics

    # -- small parts -----------------------------------------------------------------------------

    async def _guarded(self, work: Coroutine[Any, Any, T], *, actor: bool = True) -> T:
        """Await `work`, unless a worker cannot go on, or (where `actor`) the actor is lost."""
        watchers = [watch_failure(self.members)]
        if actor:
            watchers.append(watch_actor(self.members))
        return await guarded(work, watchers=watchers, background=self._background)

    async def _keep_up_late_rollouts(self) -> None:
        while True:
            await self._late.wait()
            self._late.clear()
            if not self._actor_ready or not self.weights.late():
                continue
            try:
                await self._publish()
            except ActorLostError as error:
                log.warning("late rollouts wait for the actor: %s", error)

    async def _publish(self) -> None:
        async with self.actor.lock:
            await self.weights.publish()
        self.rollouts.wake()

    async def resize(self, sizes: Sizes) -> None:
        """Go by other numbers of replicas from now on, and after a restart of this process."""
        known = self.members.desired
        if all(getattr(known, name) == value for name, value in asdict(sizes).items()):
            return
        try:
            self._journal.write_sizes(asdict(sizes), attempt=self.job.attempt)
        except OSError as error:
            raise TrimtabError(f"the new numbers of replicas could not be kept: {error}") from error
        log.info("%d rollout and %d reward replicas from now on", sizes.rollouts, sizes.rewards)
        for key in self.members.resize(sizes):
            await self._server.shutdown_worker(key, "the job has fewer replicas now", ExitCode.OK)

    def condemn(self, member: Member, reason: str) -> None:
        """A worker that does not do its part: have it started again, and count it out until then."""
        log.warning("%s is to be started again: %s", member.key, reason)
        self.members.condemn(member.key, reason)
        self.members.left(member.key, reason)

    def _joined(self, member: Member) -> None:
        log.info("%s registered (incarnation %d)", member.key, member.key.incarnation)
        if member.key.role == "rollout":
            self._late.set()

    def _leaving_said(self, key: WorkerKey, reason: str) -> None:
        log.warning("%s is about to go: %s", key, reason)
        if key.role == "actor" and key.incarnation > self._dead_incarnation:
            grace_s = self.spec.deadlines.stop_grace_seconds
            self.wishes.leave(reason, grace_s, incarnation=key.incarnation)

    def _pool(self, role: str) -> WorkPool:
        def eligible(member: Member) -> bool:
            return role != "rollout" or self.weights.is_current(member)

        return WorkPool(
            role,
            self.members,
            self._hub,
            instance=self._instance,
            eligible=eligible,
            on_overdue=self.condemn,
            unreachable_s=self.spec.deadlines.heartbeat_seconds,
        )

    def _load(self, state: TrainingState) -> None:
        self._journal.check_owner()  # what was written of later steps is cut off below
        self._state = state
        sampler = self._require(self._prepared).sampler
        self._controller = kl_controller(self.job.job)
        self._health = HealthMonitor(self.spec.tracking.health)
        if state.sampler:
            sampler.load(state.sampler)
            self._controller.load(state.kl_controller)
            self._health.load(state.health)
        else:
            sampler.load(sampler.initial_state())
        self._writer.rewind(state.step)
        self.board.step = state.step

    def _write_idle(self) -> None:
        record = Record(
            attempt=self.job.attempt,
            actor_incarnation=self.actor.incarnation,
            actor_checkpoint=self._actor_checkpoint,
            stage="idle",
            state=self._state.to_json(),
        )
        self._journal.write(record)
        self._record = record

    def _take_wishes(self) -> None:
        if self.wishes.rollout_changes and not self._resumed:
            changes, self.wishes.rollout_changes = self.wishes.rollout_changes, {}
            self._state = replace(self._state, rollout_changes={**self._state.rollout_changes, **changes})
            self._write_idle()

    def _write_samples(
        self, step: int, episodes: Sequence[Episode], samples: Mapping[str, Sample], kind: SampleKind
    ) -> None:
        some = episodes[: self.spec.tracking.samples_per_step]
        write_samples(
            self._writer, step, some, samples, kind=kind, decode=self._require(self._prepared).decode
        )

    @property
    def _mid_update(self) -> bool:
        """Whether a step is to be taken up whose update was begun by the coordinator before this one."""
        return self._resumed and self._require(self._record).stage in ("updating", "publishing")

    @property
    def _stopping(self) -> bool:
        return self.wishes.stop_reason is not None

    @property
    def _grpo(self) -> Any:
        return self._require(self.spec.algorithm.grpo)

    def _show_progress(self, done: int, total: int) -> None:
        self._note(f"generating ({done} of {total} responses)")

    def _note(self, activity: str) -> None:
        self.board.activity = activity

    def _note_missing(self, role: str) -> None:
        missing = self.members.missing(role)
        self._note(f"waiting for {', '.join(missing)}" if missing else f"waiting for the {role}")

    @staticmethod
    def _require(value: T | None) -> T:
        assert value is not None
        return value
