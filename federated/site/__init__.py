"""What runs at a site: its workload, warm workers, rounds, and the VirtualNodes it hosts."""
