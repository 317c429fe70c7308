"""Reward functions, built in and the user's own, run in worker processes that may fail."""

from trimtab.rewards.calls import RewardCall, Score, ScoreError, ScoreResult
from trimtab.rewards.check import check_rewards
from trimtab.rewards.pool import RewardPool

__all__ = ["RewardCall", "RewardPool", "Score", "ScoreError", "ScoreResult", "check_rewards"]
