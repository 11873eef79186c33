"""Who may do what: roles, a site's policy and what it decides, what a site discloses, who reads
results, commands at a site.
"""
