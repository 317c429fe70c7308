"""How the processes of a job talk: control (gRPC), experience (ZeroMQ), weights (torch.distributed)."""
