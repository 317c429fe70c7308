"""The job as an API: `RLTrainingJob`, its validation, and what each role reads.

The one source of the CRD schema, of the local runner's validation and of the reference page. Imports
neither torch nor vllm nor transformers.
"""

from trimtab.api.base import OneOf
from trimtab.api.job import API_VERSION, KIND, JobSpec, RLTrainingJob
from trimtab.api.load import load_job, parse_job
from trimtab.api.problems import JobError, Problem
from trimtab.api.resolve import ResolvedJob, training_identity

__all__ = [
    "API_VERSION",
    "KIND",
    "JobError",
    "JobSpec",
    "OneOf",
    "Problem",
    "RLTrainingJob",
    "ResolvedJob",
    "load_job",
    "parse_job",
    "training_identity",
]
