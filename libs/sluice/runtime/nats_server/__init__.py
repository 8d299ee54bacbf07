"""nats-server processes on this machine, for `sluice up` and for tests."""
