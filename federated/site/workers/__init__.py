"""The warm workers of a site: the pool that feeds them, and the actor that trains clients."""
