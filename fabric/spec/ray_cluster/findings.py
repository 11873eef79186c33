"""Collects what is wrong with a document, and what of it has no effect."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from difflib import get_close_matches

from fedpilot.common.strict_yaml.errors import Path, Problem, dotted
from fedpilot.common.strict_yaml.schema_problems import Located


@dataclass(slots=True, kw_only=True)
class Findings:
    """What a reading of a document has found so far."""

    provider: str
    problems: list[Located] = field(default_factory=list)
    warnings: list[tuple[Path, str]] = field(default_factory=list)

    @property
    def kubernetes(self) -> bool:
        """Whether the document goes to Kubernetes, which takes all that KubeRay knows."""
        return self.provider == "kuberay"

    def refuse(self, path: Path, found: str, allowed: str, nearest: str = "") -> None:
        problem = Problem(key=dotted(path), found=found, allowed=allowed, nearest=nearest)
        self.problems.append((path, problem))

    def refuse_unknown(self, path: Path, found: str, names: Iterable[str]) -> None:
        """Refuse the last step of a path, which is none of the names."""
        known = sorted(names)
        near = get_close_matches(str(path[-1])[:64], known, 1)
        self.refuse(path, found, f"one of: {', '.join(known)}", near[0] if near else "")

    def refuse_for_provider(self, path: Path, able: str = "kuberay") -> None:
        """Refuse a key that only another provider can do."""
        found = f"a key that the provider {self.provider} cannot do"
        self.refuse(path, found, f"a document without it, or the provider {able}")

    def warn(self, path: Path, text: str) -> None:
        self.warnings.append((path, text))
