"""`sluice security`: identities for the bus and gRPC, as files."""
