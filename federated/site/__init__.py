"""What runs at a site: the workload, its warm workers, its rounds, and the VirtualNodes it hosts."""
