"""Declared Ray clusters as resources of Kubernetes, whose machines the KubeRay operator keeps.

Three modules are pure: `manifest` is what is applied, `observed` what a resource says, and
`answers` what an answer of the API server means. `api` makes calls, and `kuberay_cluster` follows a
resource.
"""
