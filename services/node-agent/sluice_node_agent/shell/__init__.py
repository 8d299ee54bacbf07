"""The agent's I/O: carries out the core's instructions."""
