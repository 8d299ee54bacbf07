"""Configures nats-servers: those of this machine, for `sluice up`, and the users of any."""
