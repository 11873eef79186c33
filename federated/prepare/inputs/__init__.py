"""Turn a config into a run's inputs: its data, its partition and its model.

Checks that the data set exists, the partition can be made, and the model accepts the data. Each
fault is a `ConfigError` that names the key, raised before any call of Ray. A site derives the same
inputs from the same config. For data at sites, it has its own part, the coordinator declarations.
"""
