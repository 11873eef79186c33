"""The population of a run with data at sites: the union of the clients that sites declare.

The rules of this room:

* a site's clients are a contiguous range of the population, in the order of their ids, disclosed
  or not; sites follow each other in the order of their names;
* neither a client's name nor its random key depends on which other sites take part;
* what sites disclose comes over a wire, and is checked here before any use.
"""
