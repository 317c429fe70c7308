"""What should be, from what is: pure functions, no clock, no client. The adapter calls `reconcile`."""

from trimtab_operator.reconcile.core import reconcile

__all__ = ["reconcile"]
