"""Episodes: what generation yields and training takes, as ragged arrays of token ids.

Used by every role; numpy only, so that the coordinator and the transport need no torch.

Conventions, everywhere in Trimtab:
- an episode's arrays run over all its T tokens, prompt first; index t speaks of token t itself
  (`log_probs[t]` is the log-probability of token t given the tokens before it);
- `loss_mask[t]` is 1 where the policy wrote token t, EOS included, and 0 elsewhere;
- values at masked positions are 0, `weight_versions` there is -1;
- token ids are the truth: text is decoded from them once, for rewards, and never re-tokenised.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

FinishReason = Literal["stop", "length", "abort"]
SegmentKind = Literal["prompt", "model", "tool"]
RewardLevel = Literal["token", "turn", "episode"]


@dataclass(frozen=True)
class Sample:
    """One leased row of a dataset: a rendered prompt and whatever the rewards need of the row."""

    epoch: int
    index: int
    """Row in the dataset after filtering, before shuffling."""
    prompt_ids: NDArray[np.int32]
    prompt_text: str
    """For people and reward functions; never tokenised again."""
    fields: Mapping[str, Any] = field(default_factory=dict)
    """The row as JSON values (answer, metadata)."""

    @property
    def group_id(self) -> str:
        """Names the group of responses to this prompt; unique within a job."""
        return f"{self.epoch}/{self.index}"


@dataclass(frozen=True)
class Segment:
    """Tokens [start, end) written by one party."""

    kind: SegmentKind
    start: int
    end: int


@dataclass(frozen=True)
class Reward:
    """A number attached to a token, a turn (its last token) or the whole episode."""

    name: str
    value: float
    weight: float = 1.0
    level: RewardLevel = "episode"
    position: int = -1
    """Token index; -1 is the episode's last token."""


@dataclass(frozen=True)
class Episode:
    """One response to one prompt. T tokens, prompt included."""

    episode_id: str
    group_id: str
    token_ids: NDArray[np.int32]
    loss_mask: NDArray[np.bool_]
    log_probs: NDArray[np.float32]
    """Behaviour log-probs at the sampling temperature, as processed (after temperature)."""
    weight_versions: NDArray[np.int32]
    finish_reason: FinishReason
    segments: tuple[Segment, ...] = ()
    rewards: tuple[Reward, ...] = ()
    extras: Mapping[str, NDArray[Any]] = field(default_factory=dict)

    @property
    def num_tokens(self) -> int:
        """T."""
        return int(self.token_ids.shape[0])

    @property
    def num_response_tokens(self) -> int:
        """Tokens that carry loss."""
        return int(self.loss_mask.sum())

    @property
    def score(self) -> float:
        """Weighted sum of the rewards."""
        return float(sum(reward.weight * reward.value for reward in self.rewards))


def single_turn(
    *,
    episode_id: str,
    group_id: str,
    prompt_ids: NDArray[np.int32],
    response_ids: NDArray[np.int32],
    response_log_probs: NDArray[np.float32],
    response_versions: NDArray[np.int32],
    finish_reason: FinishReason,
) -> Episode:
    """Build the episode of one prompt and one response (EOS, where drawn, is in `response_ids`)."""
    num_prompt, num_response = len(prompt_ids), len(response_ids)
    total = num_prompt + num_response
    loss_mask = np.zeros(total, np.bool_)
    loss_mask[num_prompt:] = True
    log_probs = np.zeros(total, np.float32)
    log_probs[num_prompt:] = response_log_probs
    versions = np.full(total, -1, np.int32)
    versions[num_prompt:] = response_versions
    return Episode(
        episode_id=episode_id,
        group_id=group_id,
        token_ids=np.concatenate([prompt_ids, response_ids]).astype(np.int32),
        loss_mask=loss_mask,
        log_probs=log_probs,
        weight_versions=versions,
        finish_reason=finish_reason,
        segments=(Segment("prompt", 0, num_prompt), Segment("model", num_prompt, total)),
    )


@dataclass(frozen=True)
class TrainBatch:
    """Sequences for training, ragged: N tokens of S sequences, sequence s at offsets[s]:offsets[s+1].

    The same object goes to `log_probs` (the optional arrays are None then) and to `update`.
    """

    token_ids: NDArray[np.int32]  # [N]
    offsets: NDArray[np.int64]  # [S + 1]
    loss_mask: NDArray[np.bool_]  # [N]
    advantages: NDArray[np.float32] | None = None  # [N]
    behaviour_log_probs: NDArray[np.float32] | None = None  # [N], the rollout's
    old_log_probs: NDArray[np.float32] | None = None  # [N]; None: use the current ones, detached
    reference_log_probs: NDArray[np.float32] | None = None  # [N]
    mini_batch: NDArray[np.int32] | None = None  # [S], which optimiser step a sequence belongs to

    @property
    def num_sequences(self) -> int:
        """S."""
        return int(self.offsets.shape[0] - 1)

    @property
    def num_tokens(self) -> int:
        """N."""
        return int(self.token_ids.shape[0])

    def lengths(self) -> NDArray[np.int64]:
        """Tokens per sequence, [S]."""
        return np.diff(self.offsets)

    def select(self, sequences: Sequence[int]) -> "TrainBatch":
        """The given sequences, in the given order, as a batch of their own."""
        lengths = self.lengths()[list(sequences)] if len(sequences) else np.zeros(0, np.int64)
        offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)]).astype(np.int64)
        spans = [np.arange(self.offsets[s], self.offsets[s + 1]) for s in sequences]
        index = np.concatenate(spans) if spans else np.zeros(0, np.int64)

        def pick(values: NDArray[Any] | None) -> NDArray[Any] | None:
            return None if values is None else values[index]

        return TrainBatch(
            token_ids=self.token_ids[index],
            offsets=offsets,
            loss_mask=self.loss_mask[index],
            advantages=pick(self.advantages),
            behaviour_log_probs=pick(self.behaviour_log_probs),
            old_log_probs=pick(self.old_log_probs),
            reference_log_probs=pick(self.reference_log_probs),
            mini_batch=None if self.mini_batch is None else self.mini_batch[list(sequences)],
        )

    def arrays(self) -> dict[str, NDArray[Any]]:
        """The arrays that are present, by field name: what the experience plane carries."""
        return {name: value for name, value in vars(self).items() if value is not None}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, NDArray[Any]]) -> "TrainBatch":
        """Inverse of `arrays`."""
        return cls(**arrays)

    @classmethod
    def from_episodes(cls, episodes: Sequence[Episode]) -> "TrainBatch":
        """Concatenate episodes; advantages, old and reference log-probs are added by the flow."""
        lengths = np.array([e.num_tokens for e in episodes], np.int64)
        return cls(
            token_ids=np.concatenate([e.token_ids for e in episodes]),
            offsets=np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)]),
            loss_mask=np.concatenate([e.loss_mask for e in episodes]),
            behaviour_log_probs=np.concatenate([e.log_probs for e in episodes]),
        )
