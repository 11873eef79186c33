"""The loop of rounds: what sites are asked, which sites a round waits for, what of it counts.

It decides by `core` and asks sites through a `FederationMediator`. It does not know where sites
come from, and it writes to disk only through `run_folder`.
"""
