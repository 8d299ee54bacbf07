"""The pure core: decides, without I/O."""
