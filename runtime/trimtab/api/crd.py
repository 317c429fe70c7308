"""The CustomResourceDefinition of RLTrainingJob. Written to the chart by scripts/generate_crd.py."""

from typing import Any

from pydantic import BaseModel

from trimtab.api.fields import fields_of
from trimtab.api.job import API_VERSION, KIND, JobSpec, RLTrainingJob
from trimtab.api.rules import rules_of
from trimtab.api.schema import Schema, object_schema
from trimtab.api.status import JobStatus

GROUP, VERSION = API_VERSION.split("/")
PLURAL = "rltrainingjobs"

PRINTER_COLUMNS: tuple[Schema, ...] = (
    {"name": "Phase", "type": "string", "jsonPath": ".status.phase"},
    {"name": "Step", "type": "integer", "jsonPath": ".status.step"},
    {"name": "Reward", "type": "number", "jsonPath": ".status.metrics.reward"},
    {"name": "Restarts", "type": "integer", "jsonPath": ".status.restarts"},
    {"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"},
    {"name": "KL", "type": "number", "jsonPath": ".status.metrics.kl", "priority": 1},
    {"name": "Tokens/s", "type": "number", "jsonPath": ".status.metrics.tokensPerSecond", "priority": 1},
    {"name": "Message", "type": "string", "jsonPath": ".status.message", "priority": 1},
)
"""What `kubectl get` prints; those of priority 1 with `-o wide`."""

SCALE: Schema = {
    "specReplicasPath": ".spec.roles.rollout.replicas",
    "statusReplicasPath": ".status.rolloutReplicas",
    "labelSelectorPath": ".status.rolloutSelector",
}
"""Scalars alone: a path through a list makes every status write fail."""


def custom_resource_definition() -> dict[str, Any]:
    """The whole object."""
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{PLURAL}.{GROUP}"},
        "spec": {
            "group": GROUP,
            "names": {
                "kind": KIND,
                "listKind": f"{KIND}List",
                "plural": PLURAL,
                "singular": PLURAL.removesuffix("s"),
                "shortNames": ["rltj"],
                "categories": ["trimtab"],
            },
            "scope": "Namespaced",
            "versions": [
                {
                    "name": VERSION,
                    "served": True,
                    "storage": True,
                    "schema": {"openAPIV3Schema": _job_schema()},
                    "subresources": {"status": {}, "scale": SCALE},
                    "additionalPrinterColumns": list(PRINTER_COLUMNS),
                }
            ],
        },
    }


def _job_schema() -> Schema:
    described = {field.name: field.description for field in fields_of(RLTrainingJob)}
    spec = object_schema(JobSpec, rules_of=_validations, defaults=True)
    status = object_schema(JobStatus, rules_of=_validations, defaults=False)
    return {
        "type": "object",
        "description": RLTrainingJob.__doc__,
        "properties": {
            "apiVersion": {"type": "string", "description": described["apiVersion"]},
            "kind": {"type": "string", "description": described["kind"]},
            "metadata": {"type": "object"},
            "spec": spec | {"description": described["spec"]},
            "status": status | {"description": "How far the job is; written by the operator alone."},
        },
        "required": ["spec"],
        "x-kubernetes-validations": _validations(RLTrainingJob),
    }


def _validations(model: type[BaseModel]) -> list[Schema]:
    return [rule.to_schema() for rule in rules_of(model)]
