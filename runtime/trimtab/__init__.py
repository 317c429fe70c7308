"""Trimtab: RL post-training of large language models, on a laptop and on Kubernetes."""
