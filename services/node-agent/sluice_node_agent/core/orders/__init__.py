"""The ledger's orders, and what they change in a slice's record."""
