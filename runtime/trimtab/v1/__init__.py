"""Generated protobuf modules of the wire protocol, version 1. Written by `make proto`."""
