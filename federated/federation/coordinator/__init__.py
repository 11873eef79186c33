"""The loop of rounds: orders to sites, sites that a round waits for, answers that count.

It decides by `core` and sends orders through a `FederationMediator`. It does not know where sites
come from, and it writes to disk only through `run_folder`.
"""
