"""What the reconcile core sees and says: plain frozen data, no client, no clock."""
