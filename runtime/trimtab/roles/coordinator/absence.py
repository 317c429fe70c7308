"""Ends the job where a role has been deserted: a task on the coordinator's loop, for as long as the job runs.

A step that waits for rollouts or rewards waits in a queue, and a replica that was lost is started again by
the launcher or operator. Where none comes back, because it hangs while it starts or finds no node, nobody
else would end that wait.
"""

import asyncio
import time
from collections.abc import Callable

from trimtab.errors import DeadlineError
from trimtab.roles.coordinator.membership import Members

ROLES = ("rollout", "reward")
LOOK_EVERY_S = 1.0


async def watch_absence(members: Members, *, timeout_s: float, in_use: Callable[[], bool]) -> None:
    """Raise DeadlineError once a role has had no worker for `timeout_s`, during which `in_use` always held.

    How long the first worker of a role may take is not this task's concern (`Members.wait_for_role`).
    """
    last_here = dict.fromkeys(ROLES, time.monotonic())
    while True:
        now = time.monotonic()
        for role in ROLES:
            if members.of_role(role) or not in_use():
                last_here[role] = now
            elif now - last_here[role] > timeout_s:
                raise DeadlineError(
                    f"no {role} has been here for {timeout_s:.0f} s: missing "
                    f"{', '.join(members.missing(role))}. Look at their logs; "
                    "spec.deadlines.registrationSeconds sets how long this may take."
                )
        await asyncio.sleep(LOOK_EVERY_S)
