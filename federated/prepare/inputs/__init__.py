"""Turn a config into what a run starts from: its data, its partition and its model.

Here a config meets reality: the data set exists, the partition can be made, the model accepts the
data. All that can be wrong is a `ConfigError` that names the key, raised before Ray is asked for
anything. A site makes the same inputs of the same config; of data that lies at sites it makes its
own part, and the coordinator knows what the sites declare.
"""
