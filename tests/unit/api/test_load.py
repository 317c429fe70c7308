from pathlib import Path

import pytest

from trimtab.api import JobError, load_job, parse_job

JOB = """\
apiVersion: trimtab.dev/v1alpha1
kind: RLTrainingJob
metadata:
  name: arithmetic
spec:
  model: {path: model}
  data:
    train: {path: train.jsonl}
  algorithm: {grpo: {}}
  training:
    steps: 2
    optimizer: {learningRate: 1e-6}
  rewards:
    - function: exact_match
"""


@pytest.fixture
def write(tmp_path):
    def write(text: str) -> Path:
        path = tmp_path / "job.yaml"
        path.write_text(text, encoding="utf-8")
        return path

    return write


def the_problem(path):
    with pytest.raises(JobError) as caught:
        load_job(path)
    [problem] = caught.value.problems
    return str(problem)


def test_exponent_without_a_dot_is_a_number(write):
    assert load_job(write(JOB)).spec.training.optimizer.learning_rate == 1e-6


def test_no_is_text(write):
    job = load_job(write(JOB.replace("exact_match", "exact_match\n      arguments: {country: no}")))
    assert job.spec.rewards[0].arguments == {"country": "no"}


def test_leading_zero_is_decimal(write):
    assert load_job(write(JOB.replace("steps: 2", "steps: 010"))).spec.training.steps == 10


def test_anchors_and_aliases_work(write):
    text = JOB.replace("path: model", "path: &name model").replace("train.jsonl", "*name")
    assert load_job(write(text)).spec.data.train.path == "model"


def test_date_is_text(write):
    text = JOB.replace("exact_match", "exact_match\n      arguments: {day: 2026-01-31}")
    assert load_job(write(text)).spec.rewards[0].arguments == {"day": "2026-01-31"}


def test_problems_have_their_lines_in_the_order_of_the_file(write):
    text = JOB.replace("steps: 2", "steps: 0").replace("function: exact_match", "fonction: exact_match")
    with pytest.raises(JobError) as caught:
        load_job(write(text + "  rolls: {}\n"))
    assert [(problem.line, problem.path) for problem in caught.value.problems] == [
        (11, "spec.training.steps"),
        (14, "spec.rewards[0].fonction"),
        (15, "spec.rolls"),
    ]


def test_missing_field_has_the_line_of_its_parent(write):
    assert the_problem(write(JOB.replace("    train: {path: train.jsonl}", "    shuffle: true"))).startswith(
        "line 7: spec.data.train: is required"
    )


SYNTAX = {
    "an open bracket": (JOB + "  volumes: [\n", "line 16, column 1: is not YAML"),
    "a tab": (JOB + "\tseed: 1\n", "line 15, column 1: is not YAML"),
    "a field twice": (JOB + "  model: {path: x}\n", "line 15, column 3: the field model appears twice"),
    "a second document": (JOB + "---\n" + JOB, "line 15, column 1: a second document begins here"),
    "an unknown alias": (JOB + "  seed: *x\n", "line 15, column 9: found undefined alias 'x'"),
    "an object of Python": (JOB + "  seed: !!python/object:os.system {}\n", "is not YAML"),
}


@pytest.mark.parametrize("case", SYNTAX)
def test_syntax_error_names_line_and_column(case, write):
    text, message = SYNTAX[case]
    assert message in the_problem(write(text))


FILES = {
    "an empty file": ("", "is empty; expected a RLTrainingJob"),
    "a comment alone": ("# nothing\n", "is empty; expected a RLTrainingJob"),
    "a list": ("- 1\n", "expected an object with apiVersion, kind, metadata and spec"),
    "another kind": (
        JOB.replace("RLTrainingJob", "Job"),
        'line 2: kind: "Job" is not allowed; this version reads RLTrainingJob',
    ),
    "another version": (
        JOB.replace("v1alpha1", "v9"),
        'line 1: apiVersion: "trimtab.dev/v9" is not allowed; this version reads trimtab.dev/v1alpha1',
    ),
    "no kind": (JOB.replace("kind: RLTrainingJob\n", ""), "kind: is required: RLTrainingJob"),
    "a key that is a number": (
        JOB.replace("grpo: {}", "1: {}"),
        "line 9: spec.algorithm: the name 1 is not text (put it in quotes)",
    ),
    "a value that contains itself": (
        JOB + "  volumes: &all [*all]\n",
        "line 15: spec.volumes[0]: an alias refers to what it is inside of",
    ),
    "an infinite number": (
        JOB.replace("1e-6", ".inf"),
        "line 12: spec.training.optimizer.learningRate: inf is not allowed; numbers are finite",
    ),
}


@pytest.mark.parametrize("case", FILES)
def test_wrong_file_is_one_clear_problem(case, write):
    text, message = FILES[case]
    assert the_problem(write(text)) == message


def test_missing_file_is_named(tmp_path):
    with pytest.raises(JobError, match=r"nothere\.yaml: 1 problem\n  there is no such file"):
        load_job(tmp_path / "nothere.yaml")


def test_folder_is_refused(tmp_path):
    with pytest.raises(JobError, match="cannot be read: Is a directory"):
        load_job(tmp_path)


def test_binary_file_is_refused(tmp_path):
    path = tmp_path / "job.yaml"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(JobError, match="is not UTF-8 text"):
        load_job(path)


def test_operator_reads_a_job_of_a_newer_crd(job_data):
    """Fields that this version does not know are left out, at any depth; what is known is still checked."""
    data = job_data(
        novelty=1,
        training={"novelty": {"deep": True}, "optimizer": {"novelty": 1}},
        rewards=[{"function": "exact_match", "novelty": 1, "arguments": {"kept": 1}}],
        volumes=[{"name": "runs", "persistentVolumeClaim": {"claimName": "runs"}}],
        roles={"rollout": {"podTemplate": {"spec": {"kept": 1}}}},
    )
    data |= {"status": {"step": 3}}
    data["metadata"] |= {"uid": "1", "labels": {"a.b/c": "d"}}
    with pytest.raises(JobError, match="novelty: unknown field"):
        parse_job(data)
    job = parse_job(data, unknown="ignore")
    written = job.model_dump(mode="json", exclude_unset=True)
    assert "novelty" not in str(written)
    assert written["metadata"] == {"name": "test", "uid": "1", "labels": {"a.b/c": "d"}}
    assert written["spec"]["rewards"] == [{"function": "exact_match", "arguments": {"kept": 1}}]
    assert written["spec"]["volumes"] == data["spec"]["volumes"]
    assert written["spec"]["roles"]["rollout"]["podTemplate"] == {"spec": {"kept": 1}}


def test_operator_refuses_an_alternative_that_it_does_not_know(job_data):
    data = job_data(algorithm={"grpo": None, "novelty": {}})
    with pytest.raises(JobError, match=r"spec\.algorithm: nothing is chosen"):
        parse_job(data, unknown="ignore")
