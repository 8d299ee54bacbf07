"""Effects: reads the bus, starts and supervises processes, prints."""
