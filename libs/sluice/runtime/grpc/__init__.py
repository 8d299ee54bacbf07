"""gRPC servers and channels: limits, mutual TLS, permissions, health, traces."""
