"""The mathematics of training: advantages, KL and losses as pure functions; one flow per algorithm.

Two halves, kept apart by what they import:
- `advantages`, `kl`, `masked`, `denominators`: numpy in float64, run on the coordinator, which has no torch;
- `losses`, `aggregation`, `log_probs`: torch, run inside the actor's update.

Everything is flat: token arrays of several sequences one after the other, never padded. Shape legend:
N tokens of a batch (prompts included), R response tokens of a micro-batch, S sequences, V vocabulary.
"""
