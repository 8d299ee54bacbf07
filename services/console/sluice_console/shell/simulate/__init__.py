"""`sluice simulate`: on the live fleet, or offline from files."""
