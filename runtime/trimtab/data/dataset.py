"""A dataset of prompts: rows rendered, tokenised, filtered, ready to be leased.

Called by the coordinator: `open_dataset` once per source at the start (seconds; run it off the event
loop), then `dataset[i]` for each lease. Every prompt is tokenised once and kept as int32; the text is
rendered again when it is asked for.
"""

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from trimtab.data.leases import Lease
from trimtab.data.rendering import PromptRenderer
from trimtab.data.sources import Row, Rows, json_fields, read_rows
from trimtab.episodes import Sample
from trimtab.errors import UserError

if TYPE_CHECKING:
    from trimtab.api.data import DataSource, DataSpec

logger = logging.getLogger(__name__)

TOKENIZE_BATCH_ROWS = 512


@dataclass(frozen=True)
class PromptRow:
    """One prompt, and its row for the rewards."""

    prompt_ids: NDArray[np.int32]
    prompt_text: str
    fields: Row


class PromptDataset:
    """Rows that passed the length filter, by index 0..len-1 in the order of the source."""

    def __init__(
        self,
        rows: Rows,
        renderer: PromptRenderer,
        *,
        prompt_field: str,
        max_prompt_tokens: int,
        overlong: str,
        field: str,
    ) -> None:
        self._rows = rows
        self._renderer = renderer
        self._prompt_field = prompt_field
        self._field = field
        self.num_filtered = 0
        """Rows left out because their prompt is longer than `spec.data.maxPromptTokens`."""
        kept: list[int] = []
        ids: list[NDArray[np.int32]] = []
        for row_number, row_ids in self._tokenized():
            if len(row_ids) > max_prompt_tokens:
                self._refuse_or_count(row_number, len(row_ids), max_prompt_tokens, overlong)
                continue
            kept.append(row_number)
            ids.append(row_ids)
        self._kept = np.asarray(kept, np.int64)
        self._offsets = np.concatenate([[0], np.cumsum([len(row_ids) for row_ids in ids])]).astype(np.int64)
        self._ids = np.concatenate(ids) if ids else np.zeros(0, np.int32)
        self._report(max_prompt_tokens)

    def __len__(self) -> int:
        return len(self._kept)

    def __getitem__(self, index: int) -> PromptRow:
        if not 0 <= index < len(self):
            raise IndexError(f"row {index} of a dataset of {len(self)}")
        row_number = int(self._kept[index])
        row = self._rows[row_number]
        return PromptRow(
            prompt_ids=self._ids[self._offsets[index] : self._offsets[index + 1]],
            prompt_text=self._text(row, row_number),
            fields=json_fields(row),
        )

    def sample(self, lease: Lease) -> Sample:
        """The leased row as the flow takes it."""
        row = self[lease.index]
        return Sample(
            epoch=lease.epoch,
            index=lease.index,
            prompt_ids=row.prompt_ids,
            prompt_text=row.prompt_text,
            fields=row.fields,
        )

    def prompt_lengths(self) -> NDArray[np.int64]:
        """Tokens per prompt."""
        return np.diff(self._offsets)

    def _tokenized(self) -> Iterator[tuple[int, NDArray[np.int32]]]:
        numbered = enumerate(self._rows)
        while batch := list(islice(numbered, TOKENIZE_BATCH_ROWS)):
            texts = [self._text(row, row_number) for row_number, row in batch]
            for (row_number, _), row_ids in zip(batch, self._renderer.token_ids(texts), strict=True):
                if not len(row_ids):
                    raise UserError(f"{self._where(row_number)}: the prompt has no tokens; give it some text")
                yield row_number, row_ids

    def _text(self, row: Row, row_number: int) -> str:
        prompt = row.get(self._prompt_field)
        if prompt is None:
            raise UserError(
                f"{self._where(row_number)}: no field {self._prompt_field!r} (the row has: "
                f"{', '.join(map(str, row)) or 'no fields'}); "
                "name the prompt's field in spec.data.promptField"
            )
        return self._renderer.text(prompt, where=self._where(row_number))

    def _where(self, row_number: int) -> str:
        return f"{self._field}: {self._rows.where(row_number)}"

    def _refuse_or_count(self, row_number: int, length: int, limit: int, overlong: str) -> None:
        if overlong == "error":
            raise UserError(
                f"{self._where(row_number)}: the prompt has {length} tokens, more than "
                f"spec.data.maxPromptTokens ({limit}); raise it, or set spec.data.overlongPrompts: filter "
                "to leave such rows out"
            )
        self.num_filtered += 1

    def _report(self, max_prompt_tokens: int) -> None:
        if not len(self._rows):
            raise UserError(f"{self._field}: the dataset is empty")
        if not len(self):
            raise UserError(
                f"{self._field}: all {self.num_filtered} prompts are longer than spec.data.maxPromptTokens "
                f"({max_prompt_tokens}); raise it"
            )
        if self.num_filtered:
            logger.warning(
                "%s: left out %d of %d prompts, which are longer than spec.data.maxPromptTokens (%s)",
                self._field,
                self.num_filtered,
                len(self._rows),
                max_prompt_tokens,
            )


def open_dataset(
    source: "DataSource",
    data_spec: "DataSpec",
    *,
    tokenizer: Any,
    code_paths: Sequence[Path],
    base_dir: Path,
    field: str = "spec.data.train",
) -> PromptDataset:
    """Read, render, tokenise and filter a source. Raises `UserError` that begins with `field`.

    `base_dir` is the folder of the job file: relative paths start there.
    """
    renderer = PromptRenderer(
        tokenizer,
        apply_chat_template=data_spec.apply_chat_template,
        system_prompt=data_spec.system_prompt,
        template_arguments=data_spec.chat_template_arguments,
    )
    rows = read_rows(
        source,
        base_dir=Path(base_dir),
        code_paths=code_paths,
        prompt_field=data_spec.prompt_field,
        field=field,
    )
    return PromptDataset(
        rows,
        renderer,
        prompt_field=data_spec.prompt_field,
        max_prompt_tokens=data_spec.max_prompt_tokens,
        overlong=data_spec.overlong_prompts,
        field=field,
    )
