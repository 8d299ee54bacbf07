"""What the ledger orders, and what that changes in a slice's record."""
