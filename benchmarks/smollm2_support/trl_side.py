"""TRL's side of `smollm2_step.py`; runs in a virtual environment of its own that has no Trimtab.

Reads the settings as JSON from the first argument, trains, and writes seconds and mean response length of
every step to the file that they name.
"""

import json
import sys
import time
from pathlib import Path
from typing import Any

from datasets import load_dataset
from letters import share_of_letter_e
from transformers import TrainerCallback
from trl import GRPOConfig, GRPOTrainer


class StepTimes(TrainerCallback):  # type: ignore[misc]
    """Seconds from the end of one optimiser step to the end of the next, generation included."""

    def __init__(self) -> None:
        self.seconds: list[float] = []
        self.lengths: list[float] = []
        self._last = 0.0

    def on_train_begin(self, *_: Any, **__: Any) -> None:
        """Start the clock."""
        self._last = time.perf_counter()

    def on_step_end(self, *_: Any, **__: Any) -> None:
        """Note the step."""
        now = time.perf_counter()
        self.seconds.append(now - self._last)
        self._last = now

    def on_log(self, _args: Any, _state: Any, _control: Any, logs: dict[str, float], **__: Any) -> None:
        """Note the responses' length."""
        if "completions/mean_length" in logs:
            self.lengths.append(logs["completions/mean_length"])


def reward(completions: list[list[dict[str, str]]], **_: Any) -> list[float]:
    """As TRL calls a reward function: completions are chats."""
    return [share_of_letter_e(completion[0]["content"]) for completion in completions]


def main() -> None:
    """Train as told."""
    told = json.loads(sys.argv[1])
    times = StepTimes()
    config = GRPOConfig(
        output_dir=told["output_dir"],
        max_steps=told["steps"],
        learning_rate=told["learning_rate"],
        lr_scheduler_type="constant",
        beta=told["kl_coefficient"],
        num_generations=told["group_size"],
        per_device_train_batch_size=told["micro_batch"],
        gradient_accumulation_steps=told["sequences"] // told["micro_batch"],
        num_iterations=1,
        max_completion_length=told["response_tokens"],
        temperature=1.0,
        use_transformers_continuous_batching=told["continuous_batching"],
        model_init_kwargs={"dtype": "float32"},
        bf16=True,
        use_cpu=True,
        gradient_checkpointing=False,
        save_strategy="no",
        report_to="none",
        logging_steps=1,
        seed=told["seed"],
    )
    trainer = GRPOTrainer(
        model=told["model"],
        reward_funcs=reward,
        args=config,
        train_dataset=load_dataset("json", data_files=told["data"], split="train"),
        callbacks=[times],
    )
    trainer.train()
    result = {"seconds": times.seconds, "lengths": times.lengths}
    Path(told["result"]).write_text(json.dumps(result), encoding="utf-8")


if __name__ == "__main__":
    main()
