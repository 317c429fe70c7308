"""Engines: what generates (rollout) and what trains (training). Roles drive them."""
