"""What all commands print, and how: the one place for tables, colours, trees, spinners and endings.

`layout.py` has the shapes of tables, `statuses.py` the mark and colour of each state, `console.py`
what writes to the screen, `commands.py` how a command is listed, interrupted and ended. `clusters/`
describes virtual clusters and jobs. Amounts in words are pure: `fabric/core/text/amounts.py`. The
command lines of all three packages import this room; it reaches no Ray and no mediator.
"""
