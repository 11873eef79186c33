"""Decides which workloads of a shared Ray cluster run, where, and which ones stop for others.

`plan.plan(snapshot, now, settings)` is one round: it returns decisions, each with its reason, and
changes nothing. If it decides nothing, the cluster has settled. Read in this order:

* `records`: queues, workloads, decisions, and `Rule`, the list of all rules that a reason names;
* `snapshot`: the facts of one round, and `Facts`, which keeps them up to date by what changed;
* `fairshare`: what each queue deserves;
* `usage`: what queues have used lately, which may move their weights;
* `order`: which queue, and which workload of it, comes next;
* `admission_rules`: limits, and the quota for non-preemptible work;
* `node_choice`: the machines of a gang, or why it has none;
* `trial`: the working copy of a snapshot, in which a round tries things and takes them back;
* `actions`: keep machines free, allocate, consolidate, reclaim, preempt, stop stale gangs;
* `plan`: one round, action after action.

Imports `core` only. Amounts are whole numbers of units (`snapshot.Scale`), so no sum depends on
its order.
"""
