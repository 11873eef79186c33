"""What names in a config stand for, the archive of a user's own code, and its line that raised."""
