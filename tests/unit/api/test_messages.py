import pytest

from trimtab.api import JobError, JobSpec, parse_job
from trimtab.api.fields import walk

PYDANTIC_JARGON = (
    "Input should",
    "pydantic",
    "Extra inputs",
    "valid integer",
    "dict",
    "tuple",
    "instance of",
)


def problems(data):
    with pytest.raises(JobError) as caught:
        parse_job(data)
    return {problem.path: problem for problem in caught.value.problems}


VALUES = {
    "a number below its bound": (
        {"algorithm": {"grpo": {"groupSize": 1}}},
        "spec.algorithm.grpo.groupSize",
        "1 is not allowed; expected a whole number from 2 to 1024",
    ),
    "an open bound": (
        {"training": {"optimizer": {"learningRate": 0}}},
        "spec.training.optimizer.learningRate",
        "0 is not allowed; expected a number above 0 and at most 1",
    ),
    "a number in quotes": (
        {"training": {"steps": "10"}},
        "spec.training.steps",
        '"10" is not allowed; expected a whole number from 1 to 10000000 (without quotes)',
    ),
    "a fraction for a count": (
        {"training": {"promptsPerStep": 1.5}},
        "spec.training.promptsPerStep",
        "1.5 is not allowed; expected a whole number from 1 to 1000000",
    ),
    "no, which is text in YAML 1.2": (
        {"data": {"shuffle": "no"}},
        "spec.data.shuffle",
        '"no" is not allowed; expected true or false (no is text in YAML 1.2)',
    ),
    "a misspelt choice": (
        {"algorithm": {"grpo": {"lossAggregation": "token_mean"}}},
        "spec.algorithm.grpo.lossAggregation",
        '"token_mean" is not allowed; expected one of token-mean, seq-mean-token-sum, seq-mean-token-mean,'
        " seq-mean-token-sum-norm (did you mean token-mean?)",
    ),
    "a number for text": (
        {"model": {"revision": 1}},
        "spec.model.revision",
        "1 is not allowed; expected text of 1 to 256 characters (put it in quotes)",
    ),
    "a text that does not match": (
        {"data": {"train": {"path": None, "python": {"className": "Dataset"}}}},
        "spec.data.train.python.className",
        '"Dataset" is not allowed; expected an import path such as package.module:Name',
    ),
    "an unreadable size": (
        {"weightSync": {"bucketBytes": "2Go"}},
        "spec.weightSync.bucketBytes",
        '"2Go" is not allowed; expected a size in bytes or a quantity such as 2Gi from 1Mi to 64Gi',
    ),
    "an empty object": (
        {"roles": {"actor": None}},
        "spec.roles.actor",
        "is empty; expected an object with image, resources, sharedMemory, env, podTemplate, model, nodes,"
        " gpusPerNode",
    ),
    "a list for an object": (
        {"checkpoint": []},
        "spec.checkpoint",
        "[] is not allowed; expected an object with everySteps, keep, uri, resume, exportAtEnd",
    ),
    "an object for a list": (
        {"rewards": {"function": "length"}},
        "spec.rewards",
        '{"function": "length"} is not allowed; expected a list of 1 to 32 items',
    ),
    "an empty list": ({"rewards": []}, "spec.rewards", "[] is not allowed; expected a list of 1 to 32 items"),
    "a list of the wrong length": (
        {"training": {"optimizer": {"betas": [0.9]}}},
        "spec.training.optimizer.betas",
        "[0.9] is not allowed; expected a list of 2 items",
    ),
    "an item of a list": (
        {"rewards": [{"function": "length"}, {"function": "my rewards"}]},
        "spec.rewards[1].function",
        '"my rewards" is not allowed; expected the name of a built-in function such as exact_match, or'
        " package.module:name",
    ),
    "a number that is not finite": (
        {"training": {"optimizer": {"learningRate": float("nan")}}},
        "spec.training.optimizer.learningRate",
        "nan is not allowed; numbers are finite",
    ),
}


@pytest.mark.parametrize("case", VALUES)
def test_wrong_value_yields_one_problem_with_what_is_allowed(case, job_data):
    changes, path, message = VALUES[case]
    found = problems(job_data(**changes))
    assert {path: found[path].message} == {path: message}
    assert len(found) == 1
    assert not any(word in message for word in PYDANTIC_JARGON)


UNKNOWN = {
    "a misspelling": ({"trainning": {}}, "spec.trainning", "unknown field; did you mean training?"),
    "snake case": (
        {"training": {"prompts_per_step": 4}},
        "spec.training.prompts_per_step",
        "unknown field; did you mean promptsPerStep?",
    ),
    "a field in the wrong place": (
        {"algorithm": {"grpo": {"learningRate": 1e-5}}},
        "spec.algorithm.grpo.learningRate",
        "unknown field here; it belongs at spec.training.optimizer.learningRate",
    ),
    "a field of another alternative": (
        {"roles": {"rollout": {"engine": {"hf": {"tensorParallelSize": 2}}}}},
        "spec.roles.rollout.engine.hf.tensorParallelSize",
        "unknown field here; it belongs at spec.roles.rollout.engine.vllm.tensorParallelSize",
    ),
    "nothing known": (
        {"weightSync": {"zzz": 1}},
        "spec.weightSync.zzz",
        "unknown field; known here: bucketBytes, timeoutSeconds",
    ),
}


@pytest.mark.parametrize("case", UNKNOWN)
def test_unknown_field_suggests_what_was_meant(case, job_data):
    changes, path, message = UNKNOWN[case]
    found = problems(job_data(**changes))
    assert {path: found[path].message} == {path: message}


def test_misspelt_required_field_is_one_problem(job_data):
    data = job_data()
    data["spec"]["modle"] = data["spec"].pop("model")
    assert [str(problem) for problem in problems(data).values()] == [
        "spec.modle: unknown field; did you mean model?"
    ]


def test_missing_fields_say_what_belongs_there(job_data):
    data = job_data()
    del data["spec"]["rewards"], data["metadata"]["name"]
    found = problems(data)
    assert found["spec.rewards"].message == "is required: a list of 1 to 32 items"
    assert found["metadata.name"].message.startswith("is required: a DNS label")


@pytest.mark.parametrize(
    "name",
    ["Upper", "under_score", "-dash", "dash-", "dotted.name", "x" * 41, ""],
    ids=lambda name: name or "empty",
)
def test_job_name_that_is_no_dns_label_of_40_is_refused(name, job_data):
    data = job_data()
    data["metadata"]["name"] = name
    assert "at most 40 lower-case letters" in problems(data)["metadata.name"].message


def test_job_name_of_40_characters_is_accepted(job_data):
    data = job_data()
    data["metadata"]["name"] = "x" * 40
    assert parse_job(data).name == "x" * 40


def test_label_with_a_dotted_key_is_quoted_in_the_path(job_data):
    data = job_data()
    data["metadata"]["labels"] = {"kueue.x-k8s.io/queue-name": 1}
    assert "metadata.labels['kueue.x-k8s.io/queue-name']" in problems(data)


def test_field_that_follows_from_a_wrong_one_is_not_reported(job_data):
    assert list(problems(job_data(training={"promptsPerStep": 0}))) == ["spec.training.promptsPerStep"]


def test_error_text_has_every_problem_and_its_count(job_data):
    with pytest.raises(JobError) as caught:
        parse_job(job_data(seed=-1, suspend=1), source="job.yaml")
    assert str(caught.value).splitlines()[0] == "job.yaml: 2 problems"
    assert len(str(caught.value).splitlines()) == 3
    assert caught.value.exit_code == 64


def test_problem_holds_the_value(job_data):
    assert problems(job_data(seed=-1))["spec.seed"].value == -1


def place(path, value):
    """Changes that put a value at a path, each alternative and list on the way having what it needs."""
    name, _, rest = path.partition(".")
    if name.endswith("[]"):
        return {name[:-2]: [place(rest, value)]}
    return {name: place(rest, value) if rest else value}


@pytest.mark.parametrize("value", [None, "?", -1, 1.5, True, [], {}, ["?"], {"?": {}}, 10**30], ids=repr)
def test_any_value_at_any_field_is_accepted_or_refused_in_plain_words(value, job_data):
    for path, _ in walk(JobSpec):
        try:
            parse_job(job_data(**place(path, value)))
        except JobError as error:
            assert error.problems
            for problem in error.problems:
                assert problem.path.startswith(("spec.", "metadata."))
                assert not any(word in problem.message for word in PYDANTIC_JARGON), problem
                assert "another value" not in problem.message, problem
