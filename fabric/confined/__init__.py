"""A folder for the search path of a confined job: see `sitecustomize`."""
