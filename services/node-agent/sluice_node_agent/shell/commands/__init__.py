"""Commands that a person runs on the node itself."""
