"""Names, sizes and text from strangers: what is allowed, and how it is shown."""
