"""What a process inside a virtual cluster uses: hooks into Ray's submission, where the process
is, how it asks the manager, and the public `init`, `with` and `current_cluster`.
"""


def install() -> None:
    """Have this process work inside a virtual cluster: Ray's `worker_process_setup_hook`.

    The name stands in the runtime environments of jobs, so it is kept for good.
    """
    from .hooks import install as begin

    begin()
