"""A federation before anything starts: its loaded config, its clients, its global model.

Nothing here starts a process, asks a site or writes a file. It may import the rooms below
`federation` but none beside it.
"""
