"""What a run will be, before it starts: its sites, whether its gang fits, what a round costs.

Pure: from facts to a `Plan`, or to the largest gang that fits. It asks no site and reads no file.
"""
