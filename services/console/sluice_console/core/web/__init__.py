"""What the web page shows, as rows: derived from the last values of the bus, a node or a request at a time."""
