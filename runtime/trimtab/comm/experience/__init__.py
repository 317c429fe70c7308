"""The experience plane: episodes, batches and scores as raw buffers over ZeroMQ.

The coordinator binds an `ExperienceHub`; every worker connects an `ExperienceLink` (blocking) or an
`AsyncExperienceLink`.

Why a message cannot be doubled or reordered: a worker has one DEALER socket with one connection to the
hub's ROUTER; ZeroMQ writes a message into that connection's queue once, whole (multipart messages are
atomic), and TCP keeps the order. Nothing here resends.

When it can be lost: whatever was queued or in flight towards a peer whose process or connection ended,
or that took over the identity with a new process. So every message answers to something that is
repeated: the coordinator sends `batch`, `generate` and `score` again when a worker joins anew and it
still lacks the answer, and asks for `log_probs`, `episode` and `scores` by repeating the request. A
receiver therefore meets a request it has seen, or an answer nobody waits for any more (a worker's queue
outlives the coordinator and is delivered to the next one): both are recognised by key or episode id.
"""

from trimtab.comm.experience.frames import FrameError, Message
from trimtab.comm.experience.hub import ExperienceHub
from trimtab.comm.experience.link import AsyncExperienceLink, ExperienceLink

__all__ = ["AsyncExperienceLink", "ExperienceHub", "ExperienceLink", "FrameError", "Message"]
