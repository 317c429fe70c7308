"""The part of the operator that waits and sends: it feeds `reconcile` and carries out what it decides."""
