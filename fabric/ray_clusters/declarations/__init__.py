"""What is declared: one durable store per site, with revisions, leases and watchers."""
