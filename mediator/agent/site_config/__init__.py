"""The two files of a site's admin, read strictly: the data that the site declares, and its
policy.
"""
