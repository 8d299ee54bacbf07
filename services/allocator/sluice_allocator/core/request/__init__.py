"""One request: from what is known of it to Grant, Bound, Revoke and Released."""
