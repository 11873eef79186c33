"""Real Rays of several machines on this host, what runs on them, and what they tell of it."""
