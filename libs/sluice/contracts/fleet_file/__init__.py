"""Fleets of simulated nodes, as TOML files describe them."""
