import pytest

from trimtab.comm.control.ledger import Admission, CommandLedger
from trimtab.v1 import control_pb2 as pb


def command(key: str, step: int = 1, timeout_s: float = 0.0) -> pb.Command:
    return pb.Command(key=key, timeout_s=timeout_s, update=pb.Update(step=step))


def test_admit_new_key_runs() -> None:
    assert CommandLedger().admit(command("a")) == (Admission.RUN, None)


def test_admit_running_key_attaches() -> None:
    ledger = CommandLedger()
    ledger.admit(command("a"))
    assert ledger.admit(command("a")) == (Admission.ATTACHED, None)


def test_admit_finished_key_answers_with_its_result() -> None:
    ledger = CommandLedger()
    ledger.admit(command("a"))
    result = pb.CommandResult(key="a", ok=True, metrics={"loss": 0.5})
    ledger.complete(result)
    assert ledger.admit(command("a", timeout_s=7.0)) == (Admission.ANSWERED, result)


@pytest.mark.parametrize("finished", [False, True], ids=["while it runs", "after it finished"])
def test_admit_same_key_with_other_body_is_refused(finished: bool) -> None:
    ledger = CommandLedger()
    ledger.admit(command("a", step=1))
    if finished:
        ledger.complete(pb.CommandResult(key="a", ok=True))
    admission, result = ledger.admit(pb.Command(key="a", export=pb.Export(path="/x")))
    assert admission is Admission.ANSWERED
    assert result is not None
    assert not result.ok
    assert "update" in result.error
    assert "export" in result.error


def test_complete_forgets_the_oldest_result_and_no_running_command() -> None:
    ledger = CommandLedger(capacity=2)
    ledger.admit(command("running"))
    for key in ("a", "b", "c"):
        ledger.admit(command(key))
        ledger.complete(pb.CommandResult(key=key, ok=True))
    assert ledger.admit(command("running"))[0] is Admission.ATTACHED
    assert ledger.admit(command("b"))[0] is Admission.ANSWERED
    assert ledger.admit(command("a"))[0] is Admission.RUN


def test_complete_of_an_unknown_key_is_a_bug() -> None:
    with pytest.raises(AssertionError, match="never handed out"):
        CommandLedger().complete(pb.CommandResult(key="a"))
