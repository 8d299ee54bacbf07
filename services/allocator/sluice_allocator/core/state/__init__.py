"""What all parts of the core know: facts from the bus, pending writes, and what is looked at again."""
