"""Who may do what: roles, a site's policy, what it discloses, who reads results, commands at a
site.
"""
