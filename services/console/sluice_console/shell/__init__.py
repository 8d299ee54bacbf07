"""Does: reads the bus, starts and watches processes, prints."""
