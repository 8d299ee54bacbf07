"""The allocator's core: pure decisions, no I/O."""
