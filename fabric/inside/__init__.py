"""For processes inside a virtual cluster: hooks into Ray, their location, calls of the manager."""


def install() -> None:
    """Ray's `worker_process_setup_hook`. Jobs' runtime environments contain this name: keep it."""
    from .hooks import install as begin

    begin()
