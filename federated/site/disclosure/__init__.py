"""What a site's policy allows: what a run asks of the site's data, and what may leave it."""
