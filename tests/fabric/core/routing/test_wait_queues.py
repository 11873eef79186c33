"""Who is at the head of each line, whatever happens to those behind."""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from fedpilot.fabric.core.routing.work_table import WaitQueues


def test_whoever_is_taken_makes_way_for_the_next_of_his_line() -> None:
    lines: WaitQueues[str] = WaitQueues()
    for number, id in enumerate(["a1", "b2", "a3", "b4", "a5"]):
        lines.add(id, number, id[0])
    found = []
    for id in lines.heads():
        found.append(id)
        if id != "b2":
            lines.remove(id)
    assert found == ["a1", "b2", "a3", "a5"]
    assert list(lines.heads()) == ["b2"]


class Histories(RuleBasedStateMachine):
    """Beside what it says, a list in which everything is searched."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: WaitQueues[str] = WaitQueues()
        self.waiting: dict[str, tuple[int, str]] = {}

    @rule(number=st.integers(0, 30), kind=st.sampled_from("abc"))
    def add(self, number: int, kind: str) -> None:
        id = f"w{number}"
        if id in self.waiting:
            self.lines.remove(id)  # it is written down anew, perhaps in another line
        self.lines.add(id, number, kind)
        self.waiting[id] = number, kind

    @precondition(lambda self: self.waiting)
    @rule(data=st.data())
    def remove(self, data: st.DataObject) -> None:
        id = data.draw(st.sampled_from(sorted(self.waiting)))
        self.lines.remove(id)
        del self.waiting[id]

    @rule(count=st.integers(0, 3))
    def the_first_are_taken(self, count: int) -> None:
        for number, id in enumerate(self.lines.heads()):
            if number == count:
                break
            assert self.waiting.pop(id)
            self.lines.remove(id)

    @invariant()
    def the_heads_are_the_oldest_of_their_kind(self) -> None:
        heads: dict[str, int] = {}
        for number, kind in self.waiting.values():
            heads[kind] = min(heads.get(kind, number), number)
        assert list(self.lines.heads()) == [f"w{number}" for number in sorted(heads.values())]
        assert len(self.lines) == len(self.waiting)


TestHistories = Histories.TestCase
