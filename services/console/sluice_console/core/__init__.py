"""Pure: turns what is on the bus into documents, pictures and sentences. Reads nothing itself."""
