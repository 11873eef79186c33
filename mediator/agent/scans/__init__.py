"""What an agent finds out about its site: its Ray's state and size, and its declared data."""
