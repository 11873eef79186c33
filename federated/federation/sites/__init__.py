"""The sources of a run's sites on this machine, its gang there, and the relay of their events."""
