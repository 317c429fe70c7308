"""Makes what the quickstart trains: a tiny model, its tokenizer, and the data, in well under a minute.

The task: put five digits in ascending order, `52817` -> `12578`. The warm start is supervised training on
demonstrations of mixed quality: for prompts that begin with 0 to 3 most of them ascend, for the others most
of them descend. So the model can sort both ways but answers right for four prompts in ten; GRPO, which is
told right from wrong alone, has to find out which way is wanted. Test prompts never occur in training.

    python examples/quickstart/prepare.py [--seed 7] [--out examples/quickstart]
"""

import argparse
import json
import random
import time
from collections.abc import Sequence
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerBase
from transformers.utils import logging

from trimtab.testing.tiny_model import EOS, make_tiny_model

NUM_DIGITS = 5
NUM_TRAIN, NUM_TEST = 2000, 200
WARM_START_STEPS, WARM_START_BATCH, WARM_START_RATE = 600, 64, 3e-3
WELL_SHOWN, SHARE_RIGHT = "0123", {True: 0.9, False: 0.1}
IGNORED = -100
"""Label that transformers' loss leaves out."""


def make_rows(rng: random.Random) -> list[dict[str, str]]:
    """Distinct prompts with their answers."""
    prompts = rng.sample(range(10**NUM_DIGITS), NUM_TRAIN + NUM_TEST)
    texts = [f"{prompt:0{NUM_DIGITS}d}" for prompt in prompts]
    return [{"prompt": text, "answer": "".join(sorted(text))} for text in texts]


def write_jsonl(path: Path, rows: Sequence[dict[str, str]]) -> None:
    """One JSON object a line."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def write_data(directory: Path, rng: random.Random) -> list[dict[str, str]]:
    """Write `data/train.jsonl` and `data/test.jsonl`; return the rows to train on."""
    rows = make_rows(rng)
    write_jsonl(directory / "data" / "test.jsonl", rows[:NUM_TEST])
    write_jsonl(directory / "data" / "train.jsonl", rows[NUM_TEST:])
    return rows[NUM_TEST:]


def token_ids(tokenizer: PreTrainedTokenizerBase, rows: Sequence[dict[str, str]]) -> torch.Tensor:
    """Chats with the answer ascending and descending: [rows, 2, tokens], all of one length."""
    chats = [[{"role": "user", "content": row["prompt"]}] for row in rows]
    prompts = tokenizer.apply_chat_template(chats, add_generation_prompt=True, tokenize=False)
    pairs = zip(prompts, (row["answer"] for row in rows), strict=True)
    texts = [prompt + answer + EOS for prompt, right in pairs for answer in (right, right[::-1])]
    ids = torch.tensor(tokenizer(texts, add_special_tokens=False)["input_ids"])
    return ids.view(len(rows), 2, -1)


def warm_start(directory: Path, rows: Sequence[dict[str, str]]) -> None:
    """Train the model in `directory` on demonstrations, and write it back."""
    demonstrations = token_ids(AutoTokenizer.from_pretrained(directory), rows)
    share_right = torch.tensor([SHARE_RIGHT[row["prompt"][0] in WELL_SHOWN] for row in rows])
    model = AutoModelForCausalLM.from_pretrained(directory)
    optimizer = torch.optim.AdamW(model.parameters(), lr=WARM_START_RATE)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.0, total_iters=WARM_START_STEPS)
    for _ in range(WARM_START_STEPS):
        batch = torch.randint(len(rows), (WARM_START_BATCH,))
        descending = (torch.rand(WARM_START_BATCH) >= share_right[batch]).long()
        ids = demonstrations[batch, descending]
        labels = ids.clone()
        labels[:, : -(NUM_DIGITS + 1)] = IGNORED
        model(input_ids=ids, labels=labels).loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
    model.save_pretrained(directory)
    (directory / "model.safetensors").chmod(0o644)


def main(arguments: Sequence[str] | None = None) -> None:
    """Write `model/`, `data/train.jsonl` and `data/test.jsonl`."""
    parser = argparse.ArgumentParser(description="Make the quickstart's model and data.")
    parser.add_argument("--seed", type=int, default=7, help="of the model, the data and the warm start")
    parser.add_argument(
        "--out", type=Path, default=Path(__file__).resolve().parent, help="folder to write to"
    )
    options = parser.parse_args(arguments)

    start = time.monotonic()
    torch.manual_seed(options.seed)
    torch.set_num_threads(1)  # so small a model is slower on several
    logging.disable_progress_bar()
    train = write_data(options.out, random.Random(options.seed))
    model = make_tiny_model(options.out / "model", seed=options.seed, max_length=64)
    print(f"Warm-starting a tiny model on {WARM_START_STEPS} batches of demonstrations ...", flush=True)
    warm_start(model, train)
    print(f"Wrote {model} and {len(train)} + {NUM_TEST} prompts in {time.monotonic() - start:.0f} s")


if __name__ == "__main__":
    main()
