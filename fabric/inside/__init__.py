"""What a process inside a virtual cluster uses: hooks into Ray, its place, calls of the manager."""


def install() -> None:
    """Ray's `worker_process_setup_hook`; runtime environments of jobs have this name: it stays."""
    from .hooks import install as begin

    begin()
