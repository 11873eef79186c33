"""Applies a site's policy: what a run asks of the site's data, and what may leave it."""
