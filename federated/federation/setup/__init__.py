"""A federation before anything starts: its config as loaded, its clients, its global model.

Nothing here starts a process, asks a site or writes a file. It may import what is below
`federation`, and nothing beside it.
"""
