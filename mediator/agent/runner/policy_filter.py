"""PolicedSite: a site that checks its admin's policy before it works and before an answer leaves.

It rereads the policy file each time, so changes apply at once, even to open runs. The site's own
installation determines what a run wants and how many clients an answer covers.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path

from ...core.rules.policy import Policy
from ...core.rules.policy_decision import enforce, judge, judge_answer
from ...core.rules.wants import Wants
from ...errors import MediatorError
from ...federation.futures import failed, in_future, then
from ...federation.site import Site
from ...workload import Payload, SiteContext, SiteWorkload, load_workload
from ..site_config.site_files import policy_of


class PolicedSite:
    """A site behind its policy."""

    def __init__(
        self,
        site: Site,
        context: SiteContext,
        policy: Path | None,
        load: Callable[[str], SiteWorkload] = load_workload,
    ) -> None:
        """`policy` is a file; None for the default policy."""
        self._site = site
        self.name = site.name
        self._context = context
        self._file = policy
        self._load = load
        # The agent has judged the gang already.
        self.prepare, self.commit, self.release = site.prepare, site.commit, site.release
        self.start = site.start
        self._workload: SiteWorkload | None = None
        self._wants: Wants | None = None

    @in_future
    def check(self, workload: str, spec: Payload) -> None:
        """Judge what the spec wants, then let the site check it. PolicyRefused."""
        self._workload, self._wants = self._load(workload), None
        wants = self._workload.wants(spec, self._context)
        enforce(self.name, judge(self._policy(), wants))
        self._site.check(workload, spec).result()
        self._wants = wants

    def deliver(self, order: Payload, key: str, purpose: str) -> Future[Payload]:
        """Deliver if the policy still allows the run and the answer. PolicyRefused."""
        try:
            if self._wants is None:
                raise MediatorError("a site does nothing for a run before it was checked")
            enforce(self.name, judge(self._policy(), self._wants))
        except MediatorError as error:
            return failed(error)
        return then(self._site.deliver(order, key, purpose), self._let_out)

    def _let_out(self, answer: Payload) -> Payload:
        if self._workload is None:
            raise MediatorError("a site lets nothing out before it was checked")
        enforce(self.name, judge_answer(self._policy(), self._workload.covered(answer)))
        return answer

    def _policy(self) -> Policy:
        return policy_of(self.name, self._file)
