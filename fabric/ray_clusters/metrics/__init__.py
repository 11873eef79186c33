"""What the metrics of a site's declared Ray clusters are, and how they are given away.

`core/ray_clusters/metering.py` measures. `exposition` writes Prometheus' text and is pure,
`exporter` reads the store, and `listener` answers HTTP.
"""
