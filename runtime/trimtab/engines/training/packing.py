"""Which sequences go through the model together, and where each token of them lies.

Called by the training engine on the main thread; pure numpy, tested on its own.

Sequences are packed without padding. Responses to one prompt (a GRPO group) share that prompt: its
tokens go through the model once, and every response attends to them. A packed micro-batch is
therefore a list of segments, each a run of tokens that follows a prefix which lies elsewhere.

    tokens     [prompt a][response 1][response 2][prompt b + response 3]
    segments    prefix -   prefix a    prefix a    prefix -

Shapes: N tokens of a batch, S sequences, M tokens of a micro-batch, R response tokens.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from trimtab.episodes import TrainBatch
from trimtab.errors import UserError


@dataclass(frozen=True)
class Unit:
    """Sequences that must stay together, and how many tokens they put through the model."""

    sequences: tuple[int, ...]
    num_tokens: int


@dataclass(frozen=True)
class Segment:
    """Tokens [start, start + length) of a micro-batch; they follow those of the prefix, if any."""

    start: int
    length: int
    prefix_start: int = 0
    prefix_length: int = 0


@dataclass(frozen=True)
class MicroBatch:
    """Packed sequences. `batch_index` and `predictor` speak of its R response tokens, in batch order."""

    token_ids: NDArray[np.int64]  # [M]
    position_ids: NDArray[np.int64]  # [M]
    segments: tuple[Segment, ...]
    batch_index: NDArray[np.int64]  # [R], position in the batch's arrays
    predictor: NDArray[np.int64]  # [R], token of the micro-batch whose output predicts it
    targets: NDArray[np.int64]  # [R]
    sequence_ids: NDArray[np.int64]  # [R], 0 to num_sequences - 1
    num_sequences: int


def make_units(batch: TrainBatch, *, max_tokens: int, share_prompts: bool) -> list[Unit]:
    """Group sequences with the same prompt, as far as `max_tokens` allows; otherwise one unit each."""
    lengths = batch.lengths()
    _check_lengths(lengths, max_tokens)
    if not share_prompts:
        return [Unit((s,), int(length)) for s, length in enumerate(lengths)]
    by_prompt: dict[bytes, list[int]] = {}
    for s in range(batch.num_sequences):
        start, prompt = int(batch.offsets[s]), prompt_length(batch, s)
        by_prompt.setdefault(batch.token_ids[start : start + prompt].tobytes(), []).append(s)
    units = []
    for members in by_prompt.values():
        prompt = prompt_length(batch, members[0])
        current: list[int] = []
        num_tokens = prompt
        for s in members:
            response = int(lengths[s]) - prompt
            if current and num_tokens + response > max_tokens:
                units.append(Unit(tuple(current), num_tokens))
                current, num_tokens = [], prompt
            current.append(s)
            num_tokens += response
        units.append(Unit(tuple(current), num_tokens))
    return units


def plan_micro_batches(units: Sequence[Unit], *, max_tokens: int) -> list[tuple[int, ...]]:
    """Spread units over as few micro-batches as fit, each with nearly the same number of tokens.

    Longest first into the emptiest; one more micro-batch where that does not fit. Returns sequence
    indices, ascending within a micro-batch. No micro-batch has more than `max_tokens`.
    """
    if not units:
        return []
    order = sorted(range(len(units)), key=lambda u: (-units[u].num_tokens, units[u].sequences))
    num_bins = -(-sum(unit.num_tokens for unit in units) // max_tokens)
    while True:
        loads = [0] * num_bins
        bins: list[list[int]] = [[] for _ in range(num_bins)]
        for u in order:
            emptiest = min(range(num_bins), key=lambda b: (loads[b], b))
            loads[emptiest] += units[u].num_tokens
            bins[emptiest].extend(units[u].sequences)
        if max(loads) <= max_tokens:
            return [tuple(sorted(members)) for members in bins if members]
        num_bins += 1


def pack(batch: TrainBatch, sequences: Sequence[int], *, share_prompts: bool) -> MicroBatch:
    """Lay the given sequences out as one run of tokens."""
    tokens: list[NDArray[np.int32]] = []
    positions: list[NDArray[np.int64]] = []
    segments: list[Segment] = []
    prompts: dict[bytes, Segment] = {}
    index_parts, predictor_parts, id_parts = [], [], []
    cursor = 0
    splits = _shared_prompt_lengths(batch, sequences) if share_prompts else [0] * len(sequences)

    def append(ids: NDArray[np.int32], first_position: int, prefix: Segment | None) -> Segment:
        nonlocal cursor
        segment = Segment(cursor, len(ids), prefix.start if prefix else 0, prefix.length if prefix else 0)
        tokens.append(ids)
        positions.append(np.arange(first_position, first_position + len(ids)))
        segments.append(segment)
        cursor += len(ids)
        return segment

    for local, (s, split) in enumerate(zip(sequences, splits, strict=True)):
        start, end = int(batch.offsets[s]), int(batch.offsets[s + 1])
        prefix = None
        if split:
            key = batch.token_ids[start : start + split].tobytes()
            prefix = prompts.get(key)
            if prefix is None:
                prefix = prompts[key] = append(batch.token_ids[start : start + split], 0, None)
        own = append(batch.token_ids[start + split : end], split, prefix)
        responses = start + np.flatnonzero(batch.loss_mask[start:end])
        previous = responses - start - 1  # within the sequence
        assert not len(previous) or previous[0] >= 0, "the first token of a sequence has nothing before it"
        shift = prefix.start if prefix else 0
        index_parts.append(responses)
        predictor_parts.append(np.where(previous < split, previous + shift, previous - split + own.start))
        id_parts.append(np.full(len(responses), local))
    batch_index = np.concatenate(index_parts).astype(np.int64)
    return MicroBatch(
        token_ids=np.concatenate(tokens).astype(np.int64),
        position_ids=np.concatenate(positions).astype(np.int64),
        segments=tuple(segment for segment in segments if segment.length),
        batch_index=batch_index,
        predictor=np.concatenate(predictor_parts).astype(np.int64),
        targets=batch.token_ids[batch_index].astype(np.int64),
        sequence_ids=np.concatenate(id_parts).astype(np.int64),
        num_sequences=len(sequences),
    )


def _shared_prompt_lengths(batch: TrainBatch, sequences: Sequence[int]) -> list[int]:
    """Prompt lengths; 0 where no other of the sequences has that prompt, so that nothing is gained."""
    lengths = [prompt_length(batch, s) for s in sequences]
    starts = [int(batch.offsets[s]) for s in sequences]
    prompts = [batch.token_ids[a : a + n].tobytes() for a, n in zip(starts, lengths, strict=True)]
    counts = Counter(prompts)
    return [n if counts[prompt] > 1 else 0 for n, prompt in zip(lengths, prompts, strict=True)]


def prompt_length(batch: TrainBatch, sequence: int) -> int:
    """Tokens before the first one that carries loss (all but the last where none does)."""
    start, end = int(batch.offsets[sequence]), int(batch.offsets[sequence + 1])
    responses = np.flatnonzero(batch.loss_mask[start:end])
    return int(responses[0]) if len(responses) else max(end - start - 1, 0)


def _check_lengths(lengths: NDArray[np.int64], max_tokens: int) -> None:
    if len(lengths) and int(lengths.max()) > max_tokens:
        raise UserError(
            f"training.maxTokensPerMicroBatch: {max_tokens} is less than the longest sequence "
            f"({int(lengths.max())} tokens); raise it to at least that, or lower data.maxPromptTokens "
            "or training.maxResponseTokens"
        )
