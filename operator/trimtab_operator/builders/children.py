"""Everything that an attempt has beside its pods. Called by the adapter, which applies each."""

from collections.abc import Collection, Mapping

from trimtab_operator.builders.claim import run_claim
from trimtab_operator.builders.device_claims import device_claim_templates
from trimtab_operator.builders.disruption_budget import disruption_budget
from trimtab_operator.builders.meta import Manifest
from trimtab_operator.builders.network_policy import network_policy
from trimtab_operator.builders.secret import tls_secret
from trimtab_operator.builders.service import service
from trimtab_operator.constants import REWARD, ROLLOUT
from trimtab_operator.model.actions import EnsureChildren


def child_manifests(
    wanted: EnsureChildren, *, secret_data: Mapping[str, bytes], scaled: Collection[str] = ()
) -> list[Manifest]:
    """Service, TLS Secret, NetworkPolicy, PodDisruptionBudgets, claim and claim templates.

    `scaled`: roles that have had several replicas in this attempt. A role with one replica has no budget,
    which could only keep its node from being drained; but one that is there already has to be lowered.
    """
    resolved = wanted.resolved
    manifests = [service(resolved), tls_secret(resolved, secret_data)]
    manifests += [each for each in (network_policy(resolved), run_claim(resolved)) if each is not None]
    for role, replicas in ((ROLLOUT, wanted.rollout_replicas), (REWARD, wanted.reward_replicas)):
        if replicas > 1 or role in scaled:
            manifests.append(disruption_budget(resolved, role, replicas=max(1, replicas)))
    return manifests + device_claim_templates(resolved)
