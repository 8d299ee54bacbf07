"""Generated from proto/ by tools/proto.py: never edited. `make proto` writes it again."""
