"""Answer the broker's questions about users: whose token a password is, and what its owner may do."""
