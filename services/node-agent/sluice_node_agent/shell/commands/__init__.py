"""Commands for operators on the node itself."""
