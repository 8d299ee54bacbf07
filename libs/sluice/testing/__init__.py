"""A bus in memory, and a model of the broker's streams: for tests and the simulator, never for services."""
