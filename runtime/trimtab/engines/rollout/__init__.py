"""Rollout engines: `protocol.py` says what one is, `vllm.py` and `hf.py` are the two there are.

Neither vllm nor transformers is imported before an engine is made.
"""
