"""The pending queue: order, offers of freed capacity, backoff. Data without decisions."""
