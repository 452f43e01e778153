"""The rules of locks and other objects as a simple model, written apart from the table."""
