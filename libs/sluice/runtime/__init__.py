"""The I/O toolkit of the services: the bus, gRPC, telemetry, settings, the service runner. Takes no decision."""
