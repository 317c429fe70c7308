"""What this machine has and which roles can run on it: `machine` gathers facts, `checks` judges them."""
