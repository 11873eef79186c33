"""Turn a config into what a run starts from: its data, its partition and its model.

Checks that the data set exists, the partition can be made, and the model accepts the data. Each
fault is a `ConfigError` that names the key, raised before any call of Ray. A site makes the same
inputs of the same config. Of data at sites it makes its own part; the coordinator knows what the
sites declare.
"""
