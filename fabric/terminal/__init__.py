"""How all commands print, are interrupted and end: tables, colours, spinners, exit codes.

`clusters/` describes virtual clusters and jobs. The room imports no Ray and no mediator.
"""
