"""Token-balanced split of a batch over the data-parallel ranks. Pure; called by the actor unit's client."""

from collections.abc import Sequence

from trimtab.episodes import TrainBatch


def partition(lengths: Sequence[int], num_parts: int) -> list[list[int]]:
    """Split sequences into `num_parts` lists whose token sums are close (longest first, to the lightest).

    Deterministic; each list keeps the batch's order. A part may be empty when there are fewer sequences.
    """
    totals = [0] * num_parts
    parts: list[list[int]] = [[] for _ in range(num_parts)]
    for index in sorted(range(len(lengths)), key=lambda i: (-lengths[i], i)):
        lightest = min(range(num_parts), key=lambda p: (totals[p], p))
        parts[lightest].append(index)
        totals[lightest] += lengths[index]
    return [sorted(part) for part in parts]


def shard_sequences(batch: TrainBatch, num_ranks: int) -> list[list[int]]:
    """The sequences of each rank, [num_ranks] lists: every mini-batch is balanced on its own."""
    if num_ranks == 1:
        return [list(range(batch.num_sequences))]
    lengths = batch.lengths().tolist()
    mini = [0] * batch.num_sequences if batch.mini_batch is None else batch.mini_batch.tolist()
    ranks: list[list[int]] = [[] for _ in range(num_ranks)]
    for number in sorted(set(mini)):
        members = [s for s in range(batch.num_sequences) if mini[s] == number]
        for rank, part in enumerate(partition([lengths[s] for s in members], num_ranks)):
            ranks[rank].extend(members[i] for i in part)
    return ranks
