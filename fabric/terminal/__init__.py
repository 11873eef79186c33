"""How all commands print, are interrupted and end; `clusters/` describes virtual clusters and jobs.

The room imports no Ray and no mediator.
"""
