"""Why a request has no place, and what a place leaves."""
