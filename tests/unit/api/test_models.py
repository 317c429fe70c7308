import pytest
from pydantic import ValidationError

from trimtab.api import RLTrainingJob, parse_job
from trimtab.api.data import DataSource
from trimtab.api.fields import TypeInfo, fields_of, object_of, walk
from trimtab.api.roles import EngineSpec, HfSpec, VllmSpec
from trimtab.api.training import TrainingSpec

ALL_FIELDS = dict(walk())


def parts(info: TypeInfo):
    yield info
    for child in (info.item, info.key):
        if child is not None:
            yield from parts(child)


def is_bounded(info: TypeInfo) -> bool:
    if info.kind in ("integer", "number"):
        return info.minimum is not None and info.maximum is not None
    if info.kind == "string":
        return bool(info.values) or info.max_length is not None
    return info.kind not in ("list", "map") or info.max_length is not None


def test_every_field_has_a_description_of_whole_sentences():
    assert [path for path, field in ALL_FIELDS.items() if not field.description.endswith(".")] == []


def test_every_number_list_map_and_text_is_bounded():
    unbounded = [path for path, field in ALL_FIELDS.items() if not all(map(is_bounded, parts(field.info)))]
    assert unbounded == []


def test_every_optional_value_says_what_none_means():
    optional = {
        path: field
        for path, field in ALL_FIELDS.items()
        if field.info.nullable and object_of(field.info) is None and not path.endswith(".path")
    }
    assert len(optional) > 20
    assert [path for path, field in optional.items() if "None" not in field.description] == []


def test_every_model_has_a_docstring():
    models = {RLTrainingJob} | {m for f in ALL_FIELDS.values() if (m := object_of(f.info)) is not None}
    assert [model.__name__ for model in models if not model.__doc__] == []
    assert len(models) > 45


def test_minimal_job_has_working_defaults(job_data):
    spec = parse_job(job_data()).spec
    assert spec.training.mini_batch_prompts == spec.training.prompts_per_step == 64
    assert spec.training.updates_per_step == 1
    assert spec.training.precision.parameters == "float32"
    assert spec.roles.rollout.engine.chosen == "vllm"
    assert spec.roles.critic is None
    assert spec.rewards[0].name == "exact_match"
    assert spec.algorithm.grpo is not None
    assert spec.algorithm.grpo.kl.controller.chosen == "fixed"


def test_job_is_frozen(job_data):
    job = parse_job(job_data())
    with pytest.raises(ValidationError, match="frozen"):
        job.spec.seed = 1  # type: ignore[misc]


def test_updates_per_step_counts_mini_batches_times_epochs():
    training = TrainingSpec(steps=1, prompts_per_step=8, mini_batch_prompts=2, update_epochs=3)
    assert training.updates_per_step == 12  # 8 / 2 mini-batches, three times


def test_reward_name_of_an_import_path_is_the_function(job_data):
    job = parse_job(job_data(rewards=[{"function": "my.rewards:score"}]))
    assert job.spec.rewards[0].name == "score"


@pytest.mark.parametrize(
    ("text", "size"),
    [(2**21, 2**21), ("2Gi", 2**31), ("1.5Gi", 3 * 2**29), ("1500M", 1_500_000_000), ("2097152", 2**21)],
)
def test_sizes_take_numbers_and_quantities(job_data, text, size):
    job = parse_job(job_data(weightSync={"bucketBytes": text}))
    assert job.spec.weight_sync.bucket_bytes == size


def test_validation_samples_greedily_whatever_else_is_set(job_data):
    job = parse_job(job_data(validation={"data": {"path": "x"}, "sampling": {"topP": 0.9}}))
    assert job.spec.validation is not None
    assert job.spec.validation.sampling.temperature == 0
    assert job.spec.roles.rollout.sampling.temperature == 1


def test_alternative_knows_which_member_is_given():
    assert EngineSpec(hf=HfSpec()).chosen == "hf"
    assert EngineSpec(vllm=VllmSpec(max_concurrent_requests=7)).max_concurrent_requests == 7
    assert DataSource(path="x", split="train").chosen == "path"


def test_kubernetes_objects_keep_what_trimtab_does_not_read(job_data):
    volume = {"name": "runs", "persistentVolumeClaim": {"claimName": "runs"}}
    job = parse_job(job_data(volumes=[volume]))
    assert job.model_dump(mode="json", exclude_unset=True)["spec"]["volumes"] == [volume]


def test_job_survives_its_own_json(job_data):
    job = parse_job(job_data(weightSync={"bucketBytes": "4Mi"}, roles={"actor": {"nodes": 2}}))
    assert RLTrainingJob.model_validate_json(job.model_dump_json()) == job
    assert parse_job(job.model_dump(mode="json", exclude_none=True)) == job


def test_names_are_camel_case_in_the_file_and_snake_case_in_python():
    names = {(field.name, field.python_name) for field in fields_of(TrainingSpec)}
    assert ("maxTokensPerMicroBatch", "max_tokens_per_micro_batch") in names
