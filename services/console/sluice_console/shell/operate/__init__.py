"""Commands of cluster operators: they write one message, guarded, or ask a service for a change."""
