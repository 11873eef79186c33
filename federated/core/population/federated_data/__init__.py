"""The population of a run with data at sites: the union of the clients that sites declare.

The rules of this room:

* a site's clients are a contiguous range of the population, the sites being in the order of their
  names; within it they are in the order of their own ids, whether those are disclosed or not;
* neither a client's name nor its random key depends on which other sites take part;
* what sites disclose comes over a wire, and is checked here before any use.
"""
