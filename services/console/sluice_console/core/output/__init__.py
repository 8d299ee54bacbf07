"""Pictures, wide lines and views as text, independent of a terminal."""
