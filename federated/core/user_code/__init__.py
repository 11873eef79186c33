"""A user's own code: the archive that it travels in, and where in it an error was raised."""
