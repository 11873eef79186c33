"""Plays cases without Ray: files of machines, queues and workloads, and what must come of them.

`case_file` reads and checks a file, `facts` turns a case into what the scheduler's core decides on,
and a module per kind plays it: `settling` (also timelines; with `replay` in virtual time, which
`picture` draws), `divisions`, `virtual_clusters`. `play` chooses.
`expectations` compares the answer with what the case expects. Imports `core` and `common` only.
"""
