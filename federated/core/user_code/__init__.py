"""A user's own code: the archive that carries it, and the line in it that raised an error."""
