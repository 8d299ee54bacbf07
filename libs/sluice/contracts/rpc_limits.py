"""Limits of gRPC methods that both sides keep."""

SIMULATED_TOGETHER_MAX = 200  # pods of one `Simulate`: nothing is decided until it is answered
