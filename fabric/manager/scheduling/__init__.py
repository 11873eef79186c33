"""The queues of a Ray cluster while it runs: what `core/scheduling` decides, put into effect.

`live_facts` turns the manager's state into a snapshot for `plan`, and its members back into
vnodes; `promises` says which notices and promised places still hold; `root_scheduler` plans and
carries out; `queue_book` keeps the applied file of queues with its revision; `queue_document` says
what each queue deserves, has and waits for.
"""
