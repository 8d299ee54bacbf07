"""The allocator: the only service that writes grants and revokes."""
