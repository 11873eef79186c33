"""The document `RayCluster`, with the names of KubeRay's resource (`ray.io/v1`), read strictly.

`schema` has its keys, and `reading` turns a file or a mapping into a `RayClusterDocument`:
what it declares, the document itself, and warnings. A module for each part says what the part
allows: `start_parameters`, `amounts`, `pod_templates`, `providers`. `scaling` edits a document.
Importing this package imports none of these, nor pydantic, nor Ray.
"""
