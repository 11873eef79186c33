"""A running federation, as `Federation` gives it to users: its clients, its rounds, its record.

It may import every room of `federated` except the command line.
"""
