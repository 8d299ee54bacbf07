"""`sluice bench`: a load on a whole system, and the same messages on a bare broker."""
