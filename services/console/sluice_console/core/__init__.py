"""Pure: documents, pictures and sentences from data of the bus."""
