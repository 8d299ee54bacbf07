"""`sluice security`: who is who on the bus and over gRPC, as files."""
