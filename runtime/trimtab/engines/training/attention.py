"""Attention over packed sequences, registered with transformers under the name "packed".

The engine makes a `PackedLayout` per micro-batch and passes it through the model as the keyword
`packed_layout`; every attention layer of a transformers model then calls `packed_attention`.
Segments of about the same length form a block that is padded only here, inside attention. Padding
stands at the end, where a causal mask hides it from every real token.

On CPUs: plain matrix products, with the probabilities computed again in backward, so that memory
grows with tokens and not with their square. On GPUs: scaled_dot_product_attention per block.

Shapes: M tokens of the micro-batch, H query heads, K key-value heads, D head size; a block has B
segments, Q query rows each and P + Q key rows.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - the name everybody knows it by
from torch import Tensor, nn
from torch.nn.attention.bias import causal_lower_right
from transformers import AttentionInterface

from trimtab.engines.training.packing import Segment
from trimtab.errors import UserError

PACKED = "packed"
_MAX_QUERY_ROWS = 512
"""Longer segments are cut on CPUs: bounds the block of scores, and skips keys that causality hides."""
_MAX_BLOCK_SCORES = 1 << 19
"""Q x (P + Q) x B of one block, per head."""
_MIN_FILL = 0.75
"""Shortest over longest segment of a block."""


@dataclass(frozen=True)
class Block:
    """Segments with prefixes of one length. Padding points at row 0 and is masked by `valid`."""

    query_index: Tensor  # [B * Q]
    key_index: Tensor  # [B * (P + Q)]
    valid: Tensor  # [B * Q] bool
    num_segments: int
    num_queries: int
    num_keys: int
    full: bool
    """No padding."""


@dataclass(frozen=True)
class PackedLayout:
    """Where the segments of a micro-batch lie; one for all layers."""

    blocks: tuple[Block, ...]

    @classmethod
    def build(cls, segments: Sequence[Segment], device: torch.device) -> "PackedLayout":
        """Sort segments into blocks."""
        runs = [run for segment in segments for run in _cut(segment, device)]
        runs.sort(key=lambda run: (len(run[0]), -len(run[1])))
        blocks: list[Block] = []
        members: list[tuple[range, range]] = []
        for run in runs:
            if members and not _fits(members, run):
                blocks.append(_block(members, device))
                members = []
            members.append(run)
        blocks.append(_block(members, device))
        return cls(tuple(blocks))


def packed_attention(
    module: nn.Module,
    query: Tensor,  # [1, H, M, D]
    key: Tensor,  # [1, K, M, D]
    value: Tensor,  # [1, K, M, D]
    attention_mask: Tensor | None,
    *,
    packed_layout: PackedLayout,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    """Causal attention within each segment and to its prefix; returns [1, M, H, D]."""
    if s_aux is not None:
        raise UserError(
            "model.attention: packed does not know attention sinks, which this model has; use eager"
        )
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    if query.is_cuda and softcap is None and sliding_window is None:
        return _sdpa(query[0], key[0], value[0], packed_layout, scale), None
    arguments = (query[0], key[0], value[0], packed_layout, scale, sliding_window, softcap)
    output: Tensor = _BlockAttention.apply(*arguments)  # type: ignore[no-untyped-call]
    return output.unsqueeze(0), None


def register() -> None:
    """Make "packed" known to transformers; safe to repeat."""
    AttentionInterface.register(PACKED, packed_attention)


def _cut(segment: Segment, device: torch.device) -> list[tuple[range, range]]:
    """(prefix rows, own rows) of the pieces of a segment; a piece's prefix includes those before it."""
    rows = range(segment.start, segment.start + segment.length)
    prefix = range(segment.prefix_start, segment.prefix_start + segment.prefix_length)
    if device.type != "cpu" or segment.length <= _MAX_QUERY_ROWS or segment.prefix_length:
        return [(prefix, rows)]
    return [(rows[:cut], rows[cut : cut + _MAX_QUERY_ROWS]) for cut in range(0, len(rows), _MAX_QUERY_ROWS)]


def _fits(members: list[tuple[range, range]], run: tuple[range, range]) -> bool:
    (first_prefix, first_rows), (prefix, rows) = members[0], run
    if len(prefix) != len(first_prefix) or len(rows) < _MIN_FILL * len(first_rows):
        return False
    scores = len(first_rows) * (len(first_prefix) + len(first_rows)) * (len(members) + 1)
    return scores <= _MAX_BLOCK_SCORES


def _block(members: list[tuple[range, range]], device: torch.device) -> Block:
    num_queries = max(len(rows) for _, rows in members)
    num_prefix = len(members[0][0])
    query_index = torch.zeros(len(members), num_queries, dtype=torch.long)
    key_index = torch.zeros(len(members), num_prefix + num_queries, dtype=torch.long)
    valid = torch.zeros(len(members), num_queries, dtype=torch.bool)
    for b, (prefix, rows) in enumerate(members):
        own = torch.arange(rows.start, rows.stop)
        query_index[b, : len(rows)] = own
        key_index[b, :num_prefix] = torch.arange(prefix.start, prefix.stop)
        key_index[b, num_prefix : num_prefix + len(rows)] = own
        valid[b, : len(rows)] = True
    return Block(
        query_index=query_index.flatten().to(device),
        key_index=key_index.flatten().to(device),
        valid=valid.flatten().to(device),
        num_segments=len(members),
        num_queries=num_queries,
        num_keys=num_prefix + num_queries,
        full=bool(valid.all()),
    )


def _rows(values: Tensor, index: Tensor, num_segments: int, num_rows: int) -> Tensor:
    """Rows of [heads, M, D] as [B, heads, rows, D]."""
    heads, _, size = values.shape
    return values.index_select(1, index).view(heads, num_segments, num_rows, size).transpose(0, 1)


def _sdpa(query: Tensor, key: Tensor, value: Tensor, layout: PackedLayout, scale: float) -> Tensor:
    heads, num_tokens, size = query.shape
    output = query.new_zeros(num_tokens, heads, size)
    for block in layout.blocks:
        keys = _rows(key, block.key_index, block.num_segments, block.num_keys)
        values = _rows(value, block.key_index, block.num_segments, block.num_keys)
        result = F.scaled_dot_product_attention(
            _rows(query, block.query_index, block.num_segments, block.num_queries),
            keys,
            values,
            attn_mask=causal_lower_right(block.num_queries, block.num_keys),
            scale=scale,
            enable_gqa=key.shape[0] != heads,
        )
        rows = result.transpose(1, 2).reshape(-1, heads, size)
        output = output.index_put((block.query_index[block.valid],), rows[block.valid])
    return output.unsqueeze(0)


class _BlockAttention(torch.autograd.Function):
    """softmax(scale Q K^T) V on blocks; keeps only its inputs and output for backward."""

    @staticmethod
    def forward(
        ctx: Any,
        query: Tensor,  # [H, M, D]
        key: Tensor,  # [K, M, D]
        value: Tensor,  # [K, M, D]
        layout: PackedLayout,
        scale: float,
        window: int | None,
        softcap: float | None,
    ) -> Tensor:
        heads, num_tokens, size = query.shape
        output = query.new_zeros(num_tokens, heads, size)
        for block in layout.blocks:
            queries, keys, values = _gather(query, key, value, block)
            probabilities, _ = _probabilities(queries, keys, block, scale, window, softcap)
            result = _ungroup(probabilities.to(values.dtype) @ values, heads)
            _scatter(output, result, block)
        ctx.save_for_backward(query, key, value, output)
        ctx.settings = (layout, scale, window, softcap)
        return output

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, output = ctx.saved_tensors
        layout, scale, window, softcap = ctx.settings
        heads, kv_heads = query.shape[0], key.shape[0]
        # [M, heads, D], transposed on return; key and value gradients add up where a prefix is shared.
        grad_query = torch.zeros_like(output)
        grad_key = torch.zeros(key.shape[1], kv_heads, key.shape[2], dtype=torch.float32, device=key.device)
        grad_value = torch.zeros_like(grad_key)
        # The row term of the softmax's derivative, sum of dO * O. [M, H]
        row_terms = (grad_output.float() * output.float()).sum(-1)
        for block in layout.blocks:
            queries, keys, values = _gather(query, key, value, block)
            probabilities, tanh = _probabilities(queries, keys, block, scale, window, softcap)
            grads = grad_output.index_select(0, block.query_index)  # [B * Q, H, D]
            terms = row_terms.index_select(0, block.query_index)
            if not block.full:
                grads = grads * block.valid[:, None, None]
                terms = terms * block.valid[:, None]
            grads = _group(grads.view(block.num_segments, block.num_queries, heads, -1), kv_heads)
            terms = _group(terms.view(block.num_segments, block.num_queries, heads, 1), kv_heads)
            low = probabilities.to(grads.dtype)
            _accumulate(grad_value, low.transpose(-1, -2) @ grads, block)
            scores = (grads @ values.transpose(-1, -2)).float()
            scores.sub_(terms).mul_(probabilities).mul_(scale)
            if tanh is not None:
                scores.mul_(1 - tanh.square())
            scores = scores.to(queries.dtype)
            _accumulate(grad_key, scores.transpose(-1, -2) @ queries, block)
            _scatter(grad_query, _ungroup(scores @ keys, heads), block)
        return (
            grad_query.transpose(0, 1),
            grad_key.to(key.dtype).transpose(0, 1),
            grad_value.to(value.dtype).transpose(0, 1),
            None,
            None,
            None,
            None,
        )


def _group(values: Tensor, kv_heads: int) -> Tensor:
    """[B, Q, H, X] to [B, K, (H / K) * Q, X]: the query heads of one key-value head as more rows."""
    segments, rows, heads, size = values.shape
    return (
        values.view(segments, rows, kv_heads, heads // kv_heads, size)
        .permute(0, 2, 3, 1, 4)
        .reshape(segments, kv_heads, -1, size)
    )


def _ungroup(values: Tensor, heads: int) -> Tensor:
    """Inverse of `_group`, as [B * Q, H, X]."""
    segments, kv_heads, rows, size = values.shape
    group = heads // kv_heads
    return (
        values.view(segments, kv_heads, group, rows // group, size)
        .permute(0, 3, 1, 2, 4)
        .reshape(-1, heads, size)
    )


def _gather(query: Tensor, key: Tensor, value: Tensor, block: Block) -> tuple[Tensor, Tensor, Tensor]:
    queries = _rows(query, block.query_index, block.num_segments, block.num_queries)
    keys = _rows(key, block.key_index, block.num_segments, block.num_keys)
    values = _rows(value, block.key_index, block.num_segments, block.num_keys)
    return _group(queries.transpose(1, 2), key.shape[0]), keys, values


def _probabilities(
    queries: Tensor, keys: Tensor, block: Block, scale: float, window: int | None, softcap: float | None
) -> tuple[Tensor, Tensor | None]:
    """Softmax over keys in float32, [B, K, G * Q, P + Q]; with a softcap also its tanh."""
    scores = (queries @ keys.transpose(-1, -2)).float().mul_(scale)
    tanh = None
    if softcap is not None:
        tanh = scores.div_(softcap).tanh_().clone()
        scores.mul_(softcap)
    segments, kv_heads, _, num_keys = scores.shape
    hidden = _hidden(block, window, scores.device)
    scores.view(segments, kv_heads, -1, block.num_queries, num_keys).masked_fill_(hidden, float("-inf"))
    return torch.softmax(scores, -1), tanh


def _hidden(block: Block, window: int | None, device: torch.device) -> Tensor:
    """[Q, P + Q]: keys after the query, or too long before it. Key i stands at position i."""
    positions = torch.arange(block.num_keys - block.num_queries, block.num_keys, device=device)[:, None]
    keys = torch.arange(block.num_keys, device=device)[None, :]
    hidden = keys > positions
    return hidden if window is None else hidden | (keys <= positions - window)


def _scatter(target: Tensor, rows: Tensor, block: Block) -> None:
    if block.full:
        target.index_copy_(0, block.query_index, rows)
    else:
        target.index_copy_(0, block.query_index[block.valid], rows[block.valid])


def _accumulate(target: Tensor, grads: Tensor, block: Block) -> None:
    """Add [B, K, keys, D] to rows of [M, K, D]; padding adds zeros to row 0."""
    rows = grads.transpose(1, 2).reshape(-1, target.shape[1], target.shape[2])
    target.index_add_(0, block.key_index, rows.float())
