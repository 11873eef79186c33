"""Where the sites of a run come from (this process, several local Ray clusters, or a mediator), how
its gang is started there, and which events of sites reach the run's observers.
"""
