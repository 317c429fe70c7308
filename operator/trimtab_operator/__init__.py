"""The Kubernetes operator of Trimtab: not built yet. See docs/architecture.md for the plan."""
