"""What namespaces may have."""
