"""A site's policy names the rule that is broken, and nothing passes by silence."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, strategies as st

from fedpilot.mediator.core.rules.policy import (
    ByteCaps,
    CommandPolicy,
    DatasetRule,
    Policy,
    ResourceCaps,
    Simulations,
)
from fedpilot.mediator.core.rules.policy_decision import (
    enforce,
    judge,
    judge_answer,
    judge_bytes,
    judge_command,
    judge_gang,
    most_vnodes,
)
from fedpilot.mediator.core.rules.wants import Simulated, Wants
from fedpilot.mediator.core.traffic import Direction
from fedpilot.mediator.errors import PolicyRefused

DIGEST = "a" * 64
ALICE = Wants(user="alice", role="operator", model="mlp", gang=((2, {"CPU": 1.0}),))
STRICT = Policy(
    users=("alice", "role:admin"),
    models=("mlp", "hospital.*:*"),
    code_digests=(DIGEST,),
    datasets={"scans": DatasetRule(users=("alice",), models=("mlp",))},
    resources=ResourceCaps(vnodes=4, cpus=4, gpus=1, memory=1000),
    minimum_cohort=5,
)


@pytest.mark.parametrize(
    "wants",
    [
        pytest.param(ALICE, id="the user by name"),
        pytest.param(replace(ALICE, user="bob", role="admin"), id="a user by role"),
        pytest.param(replace(ALICE, model="hospital.nets:Net"), id="a model by a pattern"),
        pytest.param(replace(ALICE, code_digest=DIGEST), id="code that is known"),
        pytest.param(replace(ALICE, brought_code=DIGEST), id="known code that it brings"),
        pytest.param(replace(ALICE, datasets=("scans",)), id="a data set by its rule"),
        pytest.param(
            replace(ALICE, gang=((4, {"CPU": 1.0}),)), id="as many vnodes as there may be"
        ),
        pytest.param(replace(ALICE, cohort=5), id="the smallest cohort"),
        pytest.param(replace(ALICE, cohort=0), id="no client at all"),
    ],
)
def test_what_all_rules_allow_is_allowed(wants: Wants) -> None:
    assert judge(STRICT, wants) is None


@pytest.mark.parametrize(
    ("wants", "rule"),
    [
        pytest.param(replace(ALICE, user="eve"), "users", id="another user"),
        pytest.param(replace(ALICE, user=""), "users", id="a user without a name"),
        pytest.param(
            replace(ALICE, user="role:admin"), "users", id="a user who is called like a role"
        ),
        pytest.param(replace(ALICE, model="cnn"), "models", id="another model"),
        pytest.param(replace(ALICE, model=""), "models", id="a model without a name"),
        pytest.param(replace(ALICE, model="MLP"), "models", id="a model in capitals"),
        pytest.param(replace(ALICE, code_digest="b" * 64), "code_digests", id="other code"),
        pytest.param(
            replace(ALICE, code_digest=DIGEST, brought_code="b" * 64),
            "code_digests",
            id="other code that it brings",
        ),
        pytest.param(
            replace(ALICE, datasets=("scans", "genes")), "datasets", id="a data set without a rule"
        ),
        pytest.param(
            replace(ALICE, user="bob", role="admin", datasets=("scans",)),
            "datasets.scans.users",
            id="a data set of somebody else",
        ),
        pytest.param(
            replace(ALICE, model="hospital.a:B", datasets=("scans",)),
            "datasets.scans.models",
            id="a model that the data set is not for",
        ),
        pytest.param(
            replace(ALICE, gang=((5, {"CPU": 1.0}),)), "resources.vnodes", id="too many vnodes"
        ),
        pytest.param(
            replace(ALICE, gang=((2, {"CPU": 2.5}),)), "resources.cpus", id="too many CPUs together"
        ),
        pytest.param(
            replace(ALICE, gang=((2, {"GPU": 1.0}),)), "resources.gpus", id="too many GPUs"
        ),
        pytest.param(
            replace(ALICE, gang=((2, {"memory": 501.0}),)), "resources.memory", id="too much memory"
        ),
        pytest.param(replace(ALICE, cohort=4), "minimum_cohort", id="too few clients ever"),
    ],
)
def test_a_refusal_names_the_rule(wants: Wants, rule: str) -> None:
    refused = judge(STRICT, wants)
    assert refused is not None
    assert refused.rule == rule
    assert refused.found
    assert refused.allowed
    with pytest.raises(PolicyRefused, match=f"site paris refuses it by the rule {rule}"):
        enforce("paris", refused)


def test_a_run_that_shows_single_clients_to_other_sites_needs_a_cohort_of_one() -> None:
    shows = replace(ALICE, cohort=1, crosses="models of clients")
    refused = judge(STRICT, shows)
    assert refused is not None
    assert (refused.rule, refused.found) == ("minimum_cohort", "models of clients")
    assert judge(replace(STRICT, minimum_cohort=1), shows) is None


def test_a_user_called_like_a_role_is_none_of_that_role() -> None:
    impostor = Wants(user="mallory", role="viewer", model="mlp")
    assert judge(STRICT, impostor) is not None


@pytest.mark.parametrize(
    ("digests", "brings", "allowed"),
    [
        pytest.param(None, False, False, id="what is installed does not run without a rule"),
        pytest.param(None, True, False, id="nor does what a run brings"),
        pytest.param((), False, False, id="no code at all"),
        pytest.param(("any",), False, True, id="any, installed"),
        pytest.param(("any",), True, True, id="any, brought"),
        pytest.param((DIGEST, "any"), True, True, id="any beside another"),
    ],
)
def test_code_needs_a_rule(digests: tuple[str, ...] | None, brings: bool, allowed: bool) -> None:
    wants = replace(ALICE, **{"brought_code" if brings else "code_digest": "b" * 64})
    refused = judge(Policy(code_digests=digests), wants)
    assert (refused is None) is allowed
    if refused is not None:
        assert "b" * 64 in refused.found
        assert ("came with the run" in refused.found) is brings


NETS = "hospital.nets:Net"


@pytest.mark.parametrize(
    ("policy", "names", "allowed"),
    [
        pytest.param(Policy(), (), True, id="what does no harm"),
        pytest.param(Policy(), (NETS,), False, id="a model that no rule names"),
        pytest.param(Policy(models=("hospital.nets:*",)), (NETS,), True, id="one of a package"),
        pytest.param(Policy(models=("hospital*",)), (NETS,), False, id="of packages by a pattern"),
        pytest.param(Policy(models=("*",)), (NETS,), False, id="any model is no code by name"),
        pytest.param(Policy(models=("*", NETS)), (NETS,), True, id="beside its own name"),
        pytest.param(
            Policy(models=("hospital.nets:*",)), (NETS, "hospital.nets:load"), False,
            id="a loader beside it",
        ),
        pytest.param(
            Policy(datasets={"scans": DatasetRule(users=("alice",), models=(NETS,))}), (NETS,),
            True, id="one that the rule of its data names",
        ),
        pytest.param(Policy(code_digests=(DIGEST,)), (NETS,), True, id="its digest"),
        pytest.param(Policy(code_digests=("any",)), (NETS, "a:b"), True, id="any"),
        pytest.param(
            Policy(models=("hospital.nets:*",), code_digests=()), (NETS,), False,
            id="none, whatever models are allowed",
        ),
    ],
)  # fmt: skip
def test_installed_code_runs_if_a_rule_names_it(
    policy: Policy, names: tuple[str, ...], allowed: bool
) -> None:
    datasets = tuple(policy.datasets)
    wants = replace(ALICE, model=NETS, code_digest=DIGEST, installed_code=names, datasets=datasets)
    refused = judge(policy, wants)
    assert (refused is None) is allowed
    assert refused is None or refused.rule == "code_digests"


def test_the_default_allows_simulations_and_no_declared_data() -> None:
    assert judge(Policy(), Wants()) is None
    refused = judge(Policy(), Wants(user="alice", role="admin", datasets=("scans",)))
    assert refused is not None
    assert refused.rule == "datasets"
    assert judge_command(Policy(), ["cluster", "list"]) is not None


@pytest.mark.parametrize(
    ("clients", "allowed"),
    [
        pytest.param(0, True, id="an answer of nobody tells of nobody"),
        pytest.param(1, False, id="one client alone"),
        pytest.param(4, False, id="one too few"),
        pytest.param(5, True, id="enough"),
    ],
)
def test_answers_stand_for_enough_clients(clients: int, allowed: bool) -> None:
    assert (judge_answer(STRICT, clients) is None) is allowed


@pytest.mark.parametrize(
    ("commands", "arguments", "allowed"),
    [
        pytest.param(CommandPolicy.NONE, ["cluster", "list"], False, id="none"),
        pytest.param(CommandPolicy.READ, ["cluster", "list"], True, id="one that looks"),
        pytest.param(CommandPolicy.READ, ["cluster", "delete", "x"], False, id="one that changes"),
        pytest.param(
            CommandPolicy.READ, ["job", "submit", "list"], False, id="list as an argument"
        ),
        pytest.param(CommandPolicy.ALL, ["job", "submit", "x"], True, id="all"),
    ],
)
def test_commands(commands: CommandPolicy, arguments: list[str], allowed: bool) -> None:
    assert (judge_command(Policy(commands=commands), arguments) is None) is allowed


amounts = st.integers(0, 1_000_000)


@given(cap=amounts, in_round=amounts, today=amounts, more=amounts)
def test_bytes_never_exceed_a_cap(cap: int, in_round: int, today: int, more: int) -> None:
    policy = Policy(bytes_per_round=ByteCaps(to_site=cap), bytes_per_day=ByteCaps(to_site=2 * cap))
    asked = {"in_round": in_round, "today": today, "more": more}
    refused = judge_bytes(policy, Direction.TO_SITE, **asked)
    within = in_round + more <= cap and today + more <= 2 * cap
    assert (refused is None) is within
    assert judge_bytes(policy, Direction.FROM_SITE, **asked) is None


@given(
    vnodes=st.none() | st.integers(1, 64),
    cpus=st.none() | st.floats(0, 64),
    each=st.floats(0.01, 8),
)
def test_as_many_vnodes_as_the_caps_allow_are_allowed_and_no_more(
    vnodes: int | None, cpus: float | None, each: float
) -> None:
    policy = Policy(resources=ResourceCaps(vnodes=vnodes, cpus=cpus))
    most = most_vnodes(policy, {"CPU": each})
    if most is None:
        assert vnodes is cpus is None
        return
    assert most == 0 or judge_gang(policy, [(most, {"CPU": each})]) is None
    assert judge_gang(policy, [(most + 1, {"CPU": each})]) is not None


@pytest.mark.parametrize(("each", "vnodes", "cap"), [(0.1, 3, 0.3), (0.01, 190, 1.9)])
def test_caps_are_kept_in_the_units_of_ray(each: float, vnodes: int, cap: float) -> None:
    policy = Policy(resources=ResourceCaps(cpus=cap))
    assert vnodes * each > cap, "as floating point has it"
    assert most_vnodes(policy, {"CPU": each}) == vnodes
    assert judge_gang(policy, [(vnodes, {"CPU": each})]) is None


def test_the_vnodes_of_all_classes_count_together() -> None:
    policy = Policy(resources=ResourceCaps(vnodes=5, cpus=8))
    small, large = {"CPU": 1.0}, {"CPU": 4.0}
    assert judge_gang(policy, [(4, small), (1, large)]) is None
    refused = judge_gang(policy, [(1, small), (2, large)])
    assert refused is not None
    assert (refused.rule, refused.found) == ("resources.cpus", "9 in 3 vnodes")
    refused = judge_gang(policy, [(5, small), (1, {"GPU": 0.5})])
    assert refused is not None
    assert refused.found == "6 vnodes"
    assert most_vnodes(policy, small, [(1, large)]) == 4
    assert most_vnodes(policy, large, [(4, small)]) == 1
    assert most_vnodes(policy, large, [(9, small)]) == 0


def test_a_refusal_says_what_was_found_and_what_is_allowed() -> None:
    error = PolicyRefused("paris", "users", "eve", "alice")
    assert str(error) == (
        "the policy of site paris refuses it by the rule users: found eve; allowed is alice"
    )
    assert PolicyRefused(*error.args).rule == "users"
    enforce("paris", None)


DIGITS, NPZ = Simulated(loader="digits"), Simulated(loader="npz", reads=("/srv/open/a.npz",))
THEIRS = Simulated(loader="hospital.data:load")
FOLDERS = ("/srv/open", "/srv/more")


@pytest.mark.parametrize(
    ("rule", "simulated", "found"),
    [
        pytest.param(Simulations.ALL, NPZ, "", id="no policy file: whatever it reads"),
        pytest.param(Simulations.ALL, None, "", id="no policy file: whatever it does not say"),
        pytest.param(Simulations.NONE, DIGITS, "a simulation of digits", id="none at all"),
        pytest.param(Simulations.BUILTIN, DIGITS, "", id="a data set that comes with fedpilot"),
        pytest.param(
            Simulations.BUILTIN, NPZ, "a simulation of npz that reads /srv/open/a.npz", id="a file"
        ),
        pytest.param(
            Simulations.BUILTIN,
            THEIRS,
            "a simulation that loads its data by hospital.data:load",
            id="a loader of somebody else",
        ),
        pytest.param(
            Simulations.BUILTIN, None, "a simulation of unknown data", id="nothing is said"
        ),
        pytest.param(FOLDERS, DIGITS, "", id="folders: what reads no file"),
        pytest.param(FOLDERS, NPZ, "", id="folders: a file below one"),
        pytest.param(
            FOLDERS,
            Simulated(loader="npz", reads=("/srv/more/b", "/srv/opener/a.npz")),
            "a simulation of npz that reads /srv/opener/a.npz",
            id="folders: a file beside them",
        ),
        pytest.param(FOLDERS, THEIRS, "", id="folders: a loader, which code_digests judges"),
    ],
)
def test_what_data_a_simulation_may_have(
    rule: Simulations | tuple[str, ...], simulated: Simulated | None, found: str
) -> None:
    refused = judge(Policy(simulations=rule), replace(ALICE, simulated=simulated))
    assert (refused.found if refused else "") == found
    if refused:
        assert refused.rule == "simulations"


def test_a_rule_for_simulations_says_nothing_of_declared_data() -> None:
    policy = replace(STRICT, simulations=Simulations.NONE)
    assert judge(policy, replace(ALICE, datasets=("scans",))) is None
