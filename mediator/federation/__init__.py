"""One federation over many sites: sites, the gang, membership and orders.

This room owns what a federation holds at its sites. It imports the core and the workload protocol,
but no wire and no process.
"""
