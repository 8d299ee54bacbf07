"""The bus: subjects, streams, encoding, permissions, and the events that cores exchange with it."""
