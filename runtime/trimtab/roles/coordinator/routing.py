"""Reads the experience plane and gives each message to who waits for it: a task on the coordinator's loop."""

import logging

from trimtab.comm.experience import ExperienceHub
from trimtab.roles.coordinator.actors import ActorUnit
from trimtab.roles.coordinator.dispatch import WorkPool

log = logging.getLogger(__name__)


async def route_messages(hub: ExperienceHub, rollouts: WorkPool, rewards: WorkPool, actor: ActorUnit) -> None:
    """Read until cancelled."""
    while True:
        worker, message = await hub.recv()
        match message.kind:
            case "episode":
                rollouts.answer(worker, message)
            case "generate_failed":
                log.warning("%s could not generate: %s", worker, message.meta.get("error"))
                rollouts.failed(worker, message)
            case "scores":
                rewards.answer(worker, message)
            case "log_probs":
                actor.take_log_probs(worker, message)
            case other:
                log.error("%s sent a message of kind %r, which the coordinator does not know", worker, other)
