from dataclasses import replace

from tests.unit.operator.reconcile.world import World, changed

from trimtab_operator.reconcile.spec import read_spec


def test_spec_is_read_once_per_generation():
    job = World().job
    assert read_spec(job) is read_spec(replace(job, spec=dict(job.spec)))


def test_spec_is_read_anew_when_it_changed():
    job = World().job
    first = read_spec(job)
    edited = replace(job, generation=2, spec=changed(job.spec, failurePolicy__maxRestarts=9))
    assert (first.live.max_restarts, read_spec(edited).live.max_restarts) == (3, 9)
    assert read_spec(replace(edited, generation=1)).live.max_restarts == 9


def test_field_that_this_operator_does_not_know_is_ignored():
    world = World(fieldOfTheFuture=True)
    assert read_spec(world.job).live is not None
