"""A run's part at one site: its workload, warm workers, rounds, and the VirtualNodes it hosts."""
