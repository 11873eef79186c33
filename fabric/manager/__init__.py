"""The manager of a Ray cluster: an actor that admits virtual clusters and routes their work."""
