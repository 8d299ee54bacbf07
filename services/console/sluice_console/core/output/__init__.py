"""Pictures, wide lines and views as text. Knows no terminal."""
