"""A run's folder: config, rows, states and events, in files that survive a kill."""
