"""One federation over many sites: sites, the gang, membership and orders.

This room owns what a federation holds at its sites. It imports the core and the workload protocol,
and neither a wire nor a process.
"""
