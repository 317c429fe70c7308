"""A small model of a cluster around one job: API server, nodes, kubelets, the training, and operators.

    job.py        the job's spec, the platform's settings
    cluster.py    the truth: objects, every change of them in order, scheduler, kubelets, nodes
    training.py   `World`: a cluster whose pods are the processes of a training
    accounts.py   what must hold of every status that is written and of every pod that is created
    caches.py     what an operator knows of jobs and pods: the changes delivered so far, and its own writes
    operators.py  `Operator`: the adapter, whose parts may be late, lost or cut short

Names, uids, resourceVersions, conflicts, delete preconditions and graceful deletion are as in Kubernetes.
"""

from tests.unit.operator.reconcile.world.accounts import SAID
from tests.unit.operator.reconcile.world.job import SETTINGS, changed
from tests.unit.operator.reconcile.world.operators import Operator, run
from tests.unit.operator.reconcile.world.training import World

__all__ = ["SAID", "SETTINGS", "Operator", "World", "changed", "run"]
