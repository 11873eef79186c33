"""The queues of a Ray cluster while it runs: what `core/scheduling` decides, put into effect.

`live_facts` turns the manager's state into a snapshot for `plan`, and its members back into
vnodes; `decisions` says which decisions of a plan still hold, and `promises` which notices and
promised places; `root_scheduler` plans and carries out; `dry_run` looks ahead; `queue_book` keeps
the applied file of queues with its revision; `queue_document` says what each queue deserves, has
and waits for.
"""
