"""One federation over many sites: a site near or far, the gang, who takes part, orders.

This room owns what a federation holds at its sites. It imports the core and the workload protocol,
and neither a wire nor a process.
"""
