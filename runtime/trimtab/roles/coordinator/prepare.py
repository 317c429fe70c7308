"""What the coordinator reads before the first worker is needed: tokenizer, datasets, reward functions.

Blocking (seconds); called once, on a thread beside the loop. Every mistake of the user's that can be
found here is found here.
"""

import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from trimtab.api import ResolvedJob
from trimtab.data import LeasedSampler, PromptDataset, load_tokenizer, open_dataset
from trimtab.rewards import check_rewards

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Prepared:
    """Ready to train on."""

    decode: Callable[[Sequence[int]], str]
    train: PromptDataset
    validation: PromptDataset | None
    sampler: LeasedSampler
    total_steps: int


def prepare(job: ResolvedJob) -> Prepared:
    """Open everything. Raises UserError with the field that is wrong."""
    spec = job.job.spec
    base_dir = Path(job.base_dir)
    paths = [base_dir / spec.code.path] if spec.code is not None and spec.code.path is not None else []
    check_rewards(spec.rewards, code_paths=paths, base_dir=base_dir)
    if spec.validation is not None and spec.validation.rewards is not None:
        check_rewards(
            spec.validation.rewards, code_paths=paths, base_dir=base_dir, path="spec.validation.rewards"
        )
    tokenizer = load_tokenizer(spec.model, base_dir)

    def decode(token_ids: Sequence[int]) -> str:
        return str(tokenizer.decode(list(token_ids), skip_special_tokens=True))

    train = open_dataset(spec.data.train, spec.data, tokenizer=tokenizer, code_paths=paths, base_dir=base_dir)
    validation = None
    if spec.validation is not None:
        validation = open_dataset(
            spec.validation.data,
            spec.data,
            tokenizer=tokenizer,
            code_paths=paths,
            base_dir=base_dir,
            field="spec.validation.data",
        )
    training = spec.training
    if training.steps is not None:
        total_steps = training.steps
    else:
        assert training.epochs is not None
        total_steps = math.ceil(training.epochs * len(train) / training.prompts_per_step)
    log.info("%d training prompts (%d too long), %d steps", len(train), train.num_filtered, total_steps)
    sampler = LeasedSampler(len(train), seed=spec.seed, shuffle=spec.data.shuffle, epochs=training.epochs)
    return Prepared(decode, train, validation, sampler, total_steps)
