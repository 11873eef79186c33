"""A run may train its clients in a way of the user's own."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from federations import Lab, Log, many_pieces
from fedpilot.federated import ClientFailed, ConfigError, NoUsableUpdate, register_client_update


def own(user_code: str, name: str, **keys: Any) -> dict[str, Any]:
    return {
        "training__client_update": f"{user_code}:{name}",
        "training__execution": "auto",
        **keys,
    }


def test_a_client_update_of_ones_own_is_what_trains(lab: Lab, user_code: str) -> None:
    """It does what fedpilot does by itself, and ends in the same bits."""
    log = Log()
    result = lab.run(log, **own(user_code, "plain_sgd"))
    reference = lab.run()
    assert result.digest == reference.digest
    (chosen,) = log.of("execution_chosen")
    assert chosen["execution"] == "sequential"
    assert "client_update" in chosen["reason"]
    for row in result.rows:
        assert row["train_loss"] == pytest.approx(reference.rows[row["round"] - 1]["train_loss"])


@pytest.mark.parametrize("workers", [2, 3])
def test_a_client_update_gives_the_same_bits_however_many_work(
    workers: int, lab: Lab, user_code: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = own(user_code, "careless")
    reference = lab.run(**keys, resources__workers=1)
    many_pieces(monkeypatch)
    federation = lab.federation(**keys, resources__workers=workers)
    lab.cluster.faults.kill_at("train", 3)
    assert federation.run().digest == reference.digest


def test_the_code_of_a_client_update_is_part_of_the_identity(lab: Lab, user_code: str) -> None:
    with_code = lab.federation(**own(user_code, "plain_sgd"))
    assert with_code.code_digest != lab.federation().code_digest
    assert with_code.identity != lab.federation(**own(user_code, "careless")).identity


@pytest.mark.parametrize(
    ("name", "words"),
    [
        pytest.param("raising", "RuntimeError: I do not like this client", id="it raises"),
        pytest.param("wordy", "TypeError|ValueError", id="it returns words"),
        pytest.param("hoarding", "client.memory holds arrays by name", id="it keeps words"),
    ],
)
def test_a_client_update_that_goes_wrong_names_the_client(
    name: str, words: str, lab: Lab, user_code: str
) -> None:
    federation = lab.federation(**own(user_code, name))
    with pytest.raises(ClientFailed, match=words) as caught:
        federation.run()
    assert caught.value.client_id in federation
    assert "round 1" in str(caught.value)


def test_a_client_update_whose_loss_is_no_number_is_refused(lab: Lab, user_code: str) -> None:
    with pytest.raises(NoUsableUpdate):
        lab.run(**own(user_code, "lossless"))


@pytest.mark.parametrize(
    "named", ["nowhere:client_update", "users_models_for_tests:nothing", "no colon"]
)
def test_a_client_update_that_is_not_there_is_refused_before_anything_starts(
    named: str, lab: Lab, user_code: str
) -> None:
    with pytest.raises(ConfigError, match=r"training\.client_update"):
        lab.federation(training__client_update=named)


def test_fedprox_as_the_docs_have_it_is_fedavg_with_a_term_that_holds_back(lab: Lab) -> None:
    page = Path(__file__).parents[4] / "docs/how-to/own-client-update.md"
    found = re.search("```python\n(.*?)```", page.read_text(), re.DOTALL)
    assert found
    plain = lab.run()
    for mu, same in (("0", True), ("0.01", False)):
        code: dict[str, Any] = {}
        exec(found[1].replace("MU = 0.01", f"MU = {mu}"), code)
        register_client_update(f"fedprox with {mu}")(code["fedprox"])
        result = lab.run(training__client_update=f"fedprox with {mu}")
        assert (result.digest == plain.digest) is same
        assert result.rows[0]["train_loss"] == pytest.approx(plain.rows[0]["train_loss"], rel=0.1)
