"""The two files of a site's admin, read strictly: declared data and policy."""
