"""Finding a place for the requests that wait."""
