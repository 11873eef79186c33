"""Where a run's sites come from (this process, local Ray clusters, or a mediator), how its gang
starts there, and which of their events reach the run's observers.
"""
