"""What a round does, one action per module: each changes the trial and says who still waits.

`allocate` starts on free resources only. `consolidate`, `reclaim` and `preempt` make room for one
claimant at a time, all or nothing: they stop or move nothing unless the claimant then runs.
`victims` finds the members to stop. `stale_gangs` ends gangs that stay below their minimum.
"""
