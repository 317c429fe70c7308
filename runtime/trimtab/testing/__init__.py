"""Helpers that tests, examples and benchmarks share; nothing in the runtime imports them."""
