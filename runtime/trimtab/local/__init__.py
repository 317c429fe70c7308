"""The laptop launcher: what kubelet and operator are to pods, `trimtab run` is to processes.

`run_job` runs one job to its end on this machine. Each pod of the job is an agent process with the
environment that it would have in a cluster; see `launcher` for what happens when one ends.

Roles alternate (a step generates, then updates), so that each may use every core: the number of threads
is left to torch's and vLLM's defaults.
"""

from trimtab.local.launcher import run_job

__all__ = ["run_job"]
