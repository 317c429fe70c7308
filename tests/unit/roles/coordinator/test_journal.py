"""What the journal holds is what a new coordinator process reads, whatever happened in between."""

import numpy as np
import pytest

from trimtab.episodes import Reward, single_turn
from trimtab.errors import TrimtabError
from trimtab.roles.coordinator.journal import Journal, Record, SupersededError, advance


def episode(number: int, num_response: int = 3):
    ids = np.arange(number, number + num_response, dtype=np.int32)
    made = single_turn(
        episode_id=f"0/1/{number}",
        group_id="0/1",
        prompt_ids=np.array([7, 8], np.int32),
        response_ids=ids,
        response_log_probs=-np.arange(1, num_response + 1, dtype=np.float32) / 7,
        response_versions=np.full(num_response, 5, np.int32),
        finish_reason="stop",
    )
    return type(made)(**{**vars(made), "rewards": (Reward("exact", 0.5, weight=2.0),)})


def test_record_survives_and_an_older_attempts_is_not_taken(tmp_path):
    record = Record(2, 1, "", "idle", {"step": 4}, {"actor/lr": 0.1})
    Journal(tmp_path).write(advance(record, "updating"))
    assert Journal(tmp_path).read(attempt=2) == advance(record, "updating")
    assert Journal(tmp_path).read(attempt=3) is None


def test_record_of_another_version_is_refused_with_both_versions(tmp_path):
    Journal(tmp_path).write(Record(1, 1, "", "idle", {}, version=99))
    with pytest.raises(TrimtabError, match=r"version 99, this Trimtab writes 1"):
        Journal(tmp_path).read(attempt=1)


def test_episodes_come_back_bit_for_bit(tmp_path):
    journal = Journal(tmp_path)
    episodes = [episode(0), episode(3, num_response=1)]
    journal.write_episodes(3, episodes)
    for got, want in zip(journal.read_episodes(3), episodes, strict=True):
        assert got.score == want.score == 1.0
        assert (got.episode_id, got.segments, got.rewards) == (want.episode_id, want.segments, want.rewards)
        for name in ("token_ids", "loss_mask", "log_probs", "weight_versions"):
            np.testing.assert_array_equal(getattr(got, name), getattr(want, name))


def test_only_the_last_two_steps_are_kept(tmp_path):
    journal = Journal(tmp_path)
    for step in (1, 2, 3):
        journal.write_episodes(step, [episode(step)])
    assert [p.name for p in sorted(tmp_path.glob("*.npz"))] == [
        "episodes-00000002.npz",
        "episodes-00000003.npz",
    ]


def test_coordinator_that_was_replaced_and_is_still_there_writes_nothing_any_more(tmp_path):
    old, new = Journal(tmp_path), Journal(tmp_path)
    old.take(attempt=1, incarnation=1)
    record = Record(1, 1, "", "generating", {"step": 4})
    old.write(record)
    new.take(attempt=1, incarnation=2)
    for write in (
        lambda: old.write(advance(record, "updating")),
        lambda: old.write_episodes(5, [episode(0)]),
        lambda: old.write_sizes({"rollouts": 1}, attempt=1),
    ):
        with pytest.raises(SupersededError, match="attempt 1, incarnation 2 of the coordinator has taken"):
            write()
    assert new.read(attempt=1) == record
    new.write(advance(record, "updating"))
    with pytest.raises(SupersededError):  # nor does it come back
        Journal(tmp_path).take(attempt=1, incarnation=1)


def test_later_attempt_takes_the_journal_whatever_its_incarnation(tmp_path):
    Journal(tmp_path).take(attempt=1, incarnation=7)
    Journal(tmp_path).take(attempt=2, incarnation=1)
    with pytest.raises(SupersededError):
        Journal(tmp_path).take(attempt=1, incarnation=8)


def test_earlier_start_that_writes_itself_down_last_does_not_keep_the_journal(tmp_path):
    old, new = Journal(tmp_path), Journal(tmp_path)
    look = old._found_owner

    def look_while_the_successor_takes_it():
        found = look()
        if not found:
            new.take(attempt=1, incarnation=2)
        return found

    old._found_owner = look_while_the_successor_takes_it
    old.take(attempt=1, incarnation=1)
    record = Record(1, 1, "", "generating", {"step": 4})
    new.write(record)
    with pytest.raises(SupersededError, match="attempt 1, incarnation 2"):
        old.write(advance(record, "updating"))
    assert new.read(attempt=1) == record
