"""Where the sites of a run come from (this process, several local Ray clusters, or a mediator), how
its gang is started there, and what is told to them and heard of them while it goes on.
"""
