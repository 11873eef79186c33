"""How all commands print, are interrupted and end: tables, colours, spinners, exit codes.

`clusters/` describes virtual clusters and jobs. Amounts in words are in
`fabric/core/text/amounts.py`. The room reaches no Ray and no mediator.
"""
