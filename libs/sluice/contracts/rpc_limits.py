"""Limits of gRPC methods that both sides keep."""

SIMULATED_TOGETHER_MAX = 200
"""Pods of one question (`AllocatorService.Simulate`): while it is answered nothing is decided."""
