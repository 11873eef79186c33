"""What the metrics of a site's declared Ray clusters are, and how they are given away.

`core/ray_clusters/metering.py` measures. `families` says what Prometheus is told of it and is pure.
`exporter` reads the store; prometheus_client writes the file and answers HTTP.
"""
