"""Packed attention against softmax over an explicit mask, values and gradients, in float64 and float32."""

import pytest
import torch
from torch import Tensor, nn

from trimtab.engines.training import attention
from trimtab.engines.training.attention import PackedLayout, packed_attention
from trimtab.engines.training.packing import Segment
from trimtab.errors import UserError

CPU = torch.device("cpu")
# A prompt of 5 with two responses to it, and sequences of their own, one longer than a cut.
SHARED = (
    Segment(0, 5),
    Segment(5, 3, 0, 5),
    Segment(8, 4, 0, 5),
    Segment(12, 7),
    Segment(19, 6),
    Segment(25, 1),
)


def reference(
    query: Tensor, key: Tensor, value: Tensor, segments: tuple[Segment, ...], scale: float,
    window: int | None = None, softcap: float | None = None,
) -> Tensor:  # fmt: skip
    """[1, M, H, D]: every row against the rows of its prefix and its own before it."""
    num_tokens = query.shape[2]
    visible = torch.zeros(num_tokens, num_tokens, dtype=torch.bool)
    for segment in segments:
        prefix = list(range(segment.prefix_start, segment.prefix_start + segment.prefix_length))
        own = list(range(segment.start, segment.start + segment.length))
        for i, row in enumerate(own):
            columns = prefix + own[: i + 1]
            visible[row, columns if window is None else columns[-window:]] = True
    group = query.shape[1] // key.shape[1]
    key, value = key.repeat_interleave(group, 1), value.repeat_interleave(group, 1)
    scores = query @ key.transpose(2, 3) * scale
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    weights = torch.softmax(scores.masked_fill(~visible, float("-inf")), -1)
    return (weights @ value).transpose(1, 2)


def inputs(num_tokens: int, heads: int = 4, kv_heads: int = 2) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [
        torch.randn(1, h, num_tokens, 8, generator=generator, requires_grad=True)
        for h in (heads, kv_heads, kv_heads)
    ]


def assert_same(tensors: list[Tensor], got: Tensor, want: Tensor, *, tolerance: float = 1e-5) -> None:
    generator = torch.Generator().manual_seed(1)
    weights = torch.randn(got.shape, generator=generator)
    torch.testing.assert_close(got, want, atol=tolerance, rtol=tolerance)
    for mine, theirs in zip(
        torch.autograd.grad((got * weights).sum(), tensors),
        torch.autograd.grad((want * weights).sum(), tensors),
        strict=True,
    ):
        torch.testing.assert_close(mine, theirs, atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize(
    "options",
    [{}, {"sliding_window": 3}, {"softcap": 2.0}],
    ids=["plain", "with a sliding window", "with a softcap"],
)
def test_packed_attention_shared_prompts_equals_masked_softmax(options: dict[str, float]) -> None:
    tensors = inputs(26)
    layout = PackedLayout.build(SHARED, CPU)
    got, _ = packed_attention(nn.Module(), *tensors, None, packed_layout=layout, scaling=0.3, **options)  # type: ignore[arg-type]
    window = options.get("sliding_window")
    want = reference(*tensors, SHARED, 0.3, None if window is None else int(window), options.get("softcap"))
    assert_same(tensors, got, want)


def test_packed_attention_long_sequence_is_cut_and_equal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention, "_MAX_QUERY_ROWS", 8)
    segments = (Segment(0, 21), Segment(21, 5))
    tensors = inputs(26)
    layout = PackedLayout.build(segments, CPU)
    assert len(layout.blocks) > 2
    got, _ = packed_attention(nn.Module(), *tensors, None, packed_layout=layout, scaling=0.3)
    assert_same(tensors, got, reference(*tensors, segments, 0.3))


def test_packed_attention_by_sdpa_as_on_gpus_equals_masked_softmax() -> None:
    tensors = inputs(26)
    layout = PackedLayout.build(SHARED, CPU)
    query, key, value = (tensor[0] for tensor in tensors)
    got = attention._sdpa(query, key, value, layout, 0.3)
    assert_same(tensors, got, reference(*tensors, SHARED, 0.3))


def test_packed_attention_other_sequence_changes_nothing() -> None:
    tensors = inputs(26)
    layout = PackedLayout.build(SHARED, CPU)
    before, _ = packed_attention(nn.Module(), *tensors, None, packed_layout=layout)
    with torch.no_grad():
        for tensor in tensors:
            tensor[:, :, 12:19] += 100.0
    after, _ = packed_attention(nn.Module(), *tensors, None, packed_layout=layout)
    assert torch.equal(before[:, :12], after[:, :12])
    assert torch.equal(before[:, 19:], after[:, 19:])


def test_packed_attention_model_with_sinks_is_refused() -> None:
    layout = PackedLayout.build((Segment(0, 2),), CPU)
    with pytest.raises(UserError, match=r"model\.attention"):
        packed_attention(nn.Module(), *inputs(2), None, packed_layout=layout, s_aux=torch.zeros(4))
