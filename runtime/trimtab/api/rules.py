"""The CRD's rules in CEL: what a schema cannot say and the API server shall refuse at once.

Read by `crd`. `trimtab.api` checks the same in Python (and more: what a rule would be too costly or too long
for is found by the operator, in the condition Validated), except for changes, which only the API server sees.
Values that are null never reach a rule: the API server leaves them out where a field is not nullable.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import BaseModel

from trimtab.api.algorithm import REFUSED_ROLES
from trimtab.api.base import OneOf
from trimtab.api.changes import WHOSE, When, parts
from trimtab.api.data import DataSource
from trimtab.api.fields import fields_of, object_of, walk
from trimtab.api.job import JobSpec, RLTrainingJob
from trimtab.api.roles import RewardRoleSpec, RolloutSpec
from trimtab.api.schema import stored_default
from trimtab.api.training import TrainingSpec

CEL_RESERVED = frozenset(
    {"as", "break", "const", "continue", "else", "false", "for", "function", "if", "import", "in", "let"}
    | {"loop", "namespace", "null", "package", "return", "true", "var", "void", "while"}
)
"""Names that an expression would have to escape."""


@dataclass(frozen=True)
class Rule:
    """One rule of an object."""

    expression: str
    """Over `self`, the object; with `oldSelf`, it is asked of a change alone."""
    message: str
    """What is wrong, and what is allowed."""
    field_path: str | None = None
    """The field that the message is about; None: the object."""
    reason: Literal["FieldValueInvalid", "FieldValueForbidden"] = "FieldValueInvalid"
    message_expression: str | None = None
    """Gives a message that says more; `message` is what is left where it cannot."""

    def to_schema(self) -> dict[str, Any]:
        """As `x-kubernetes-validations` has it."""
        schema = {
            "rule": self.expression,
            "message": self.message,
            "messageExpression": self.message_expression,
            "reason": self.reason,
            "fieldPath": self.field_path,
        }
        return {name: value for name, value in schema.items() if value is not None}


def rules_of(model: type[BaseModel]) -> tuple[Rule, ...]:
    """The rules of an object, wherever in the job it is."""
    own = _OWN.get(model, ())
    if model is JobSpec:
        own += _algorithm_rules()
    if model is RLTrainingJob:
        own += (_change_rule(),)
    return ((_exactly_one(model), *own)) if issubclass(model, OneOf) else own


def rules_by_place() -> Iterator[tuple[str, Rule]]:
    """Every rule with the path of the object that it is asked of; empty: the whole job."""
    yield from (("", rule) for rule in rules_of(RLTrainingJob))
    for path, field in walk():
        model = object_of(field.info)
        if model is not None:
            place = path + ("[]" if field.info.kind == "list" else "")
            yield from ((place, rule) for rule in rules_of(model))


_ENOUGH = Rule(
    "self.?minReplicas.orValue(1) <= self.?replicas.orValue(1)", "at most replicas", ".minReplicas"
)

_OWN: dict[type[BaseModel], tuple[Rule, ...]] = {
    RLTrainingJob: (
        Rule(
            "self.metadata.name.matches('^[a-z0-9]([a-z0-9-]{0,38}[a-z0-9])?$')",
            "the name of a job is a DNS label of at most 40 characters (lower-case letters, digits and"
            " dashes, a letter or digit at each end), because pod names are made from it",
            ".metadata",
        ),
    ),
    DataSource: (
        Rule(
            "has(self.path) || !(has(self.format) || has(self.split))", "format and split go with path alone"
        ),
    ),
    TrainingSpec: (
        Rule("has(self.steps) != has(self.epochs)", "exactly one of steps and epochs is allowed"),
    ),
    RolloutSpec: (_ENOUGH,),
    RewardRoleSpec: (_ENOUGH,),
}


def _exactly_one(model: type[OneOf]) -> Rule:
    names = [field.name for field in fields_of(model) if field.python_name in model.alternatives()]
    assert not CEL_RESERVED & set(names), f"{model.__name__} has a name that CEL reserves"
    given = [f"has(self.{name})" for name in names]
    expression = given[0] if len(given) == 1 else f"[{', '.join(given)}].exists_one(given, given)"
    return Rule(expression, f"exactly one of these is allowed: {', '.join(names)}")


def _algorithm_rules() -> tuple[Rule, ...]:
    refused = tuple(
        Rule(
            f"!has(self.algorithm.{algorithm}) || !has(self.roles.{role})",
            f"{algorithm} has no {role}: leave the role out",
            f".roles.{role}",
            "FieldValueForbidden",
        )
        for algorithm, roles in REFUSED_ROLES.items()
        for role in roles
    )
    unused = Rule(
        "!has(self.roles.reference) || self.algorithm.grpo.kl.coefficient > 0.0",
        "nothing uses a reference: leave it out, or set algorithm.grpo.kl.coefficient above 0",
        ".roles.reference",
        "FieldValueForbidden",
    )
    return (*refused, unused)


def _change_rule() -> Rule:
    """What may change when, as one rule of the whole job, whose status says whether it was ever started.

    The API server asks it at each status write too, and evaluating it is most of the cost: every field that
    an expression names costs as much as the object has fields. So what is cheap comes first. A status write
    cannot change the spec, nor a write of the spec the status: the server puts back what was there.
    """
    never, suspended = _frozen_parts("never"), _frozen_parts("suspended")
    new = "(!has(oldSelf.status) || !has(oldSelf.status.starts) || oldSelf.status.starts == 0)"
    return Rule(
        f"{_status_written()} || self.spec == oldSelf.spec || ({new} && {_unchanged([WHOSE])})"
        f" || ({_all_unchanged(never)} && (oldSelf.spec.suspend || ({_all_unchanged(suspended)})))",
        "some fields never change, and others only while spec.suspend is true",
        field_path=".spec",
        reason="FieldValueForbidden",
        message_expression=(
            f"{_changed(never, 'never changes')} + (oldSelf.spec.suspend ? '' : "
            f"{_changed(suspended, 'changes only while spec.suspend is true')})"
            " + 'set spec.suspend to true first, or make a new job where a field never changes'"
        ),
    )


def _status_written() -> str:
    """That the status differs, by what nearly every write of it changes."""
    differ = (
        f"(has(self.status.{name}) && (!has(oldSelf.status.{name})"
        f" || self.status.{name} != oldSelf.status.{name}))"
        for name in ("starts", "step", "message", "units")
    )
    return f"(has(self.status) && (!has(oldSelf.status) || {' || '.join(differ)}))"


def _frozen_parts(when: When) -> list[list[str]]:
    """The names on the way to each such part, without the roles that every algorithm refuses."""
    refused = set.intersection(*map(set, REFUSED_ROLES.values()))
    paths = [part.path.split(".") for part in parts() if part.when == when]
    return [names for names in paths if not (names[0] == "roles" and names[1] in refused)]


def _all_unchanged(paths: list[list[str]]) -> str:
    return " && ".join(map(_unchanged, paths))


def _changed(paths: list[list[str]], text: str) -> str:
    """Which of the fields changed, in words. A list that is filtered and joined would be too costly."""
    return " + ".join(f"({_unchanged(names)} ? '' : 'spec.{'.'.join(names)} {text}; ')" for names in paths)


def _unchanged(names: list[str]) -> str:
    """That a field of the spec is as it was. Optional types would be shorter, and of unbounded cost."""
    assert not CEL_RESERVED & set(names), f"{names} has a name that CEL reserves"
    place = ".spec"
    model: type[BaseModel] = JobSpec
    absent_at: list[str] = []
    for name in names:
        field = next(field for field in fields_of(model) if field.name == name)
        place += f".{name}"
        if not field.required and stored_default(model, field) is None:
            absent_at.append(place)
        model = object_of(field.info) or model
    if not absent_at:
        return f"self{place} == oldSelf{place}"
    now = " && ".join(f"has(self{each})" for each in absent_at)
    before = " && ".join(f"has(oldSelf{each})" for each in absent_at)
    if len(absent_at) > 1:
        now, before = f"({now})", f"({before})"
    return f"({now} ? {before} && self{place} == oldSelf{place} : !{before})"
