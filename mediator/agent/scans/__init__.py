"""What an agent finds out about its site: the state and size of its Ray, and its declared data."""
