"""The coordinator: one CPU-only process per job that runs the dataflow of every step."""
