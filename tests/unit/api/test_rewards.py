from trimtab.api.rewards import BUILT_IN_REWARDS
from trimtab.rewards.functions import BUILTINS


def test_built_in_names_are_those_of_the_reward_role():
    assert set(BUILT_IN_REWARDS) == set(BUILTINS)


def test_description_names_every_built_in_function():
    from trimtab.api.fields import find

    found = find("spec.rewards.function")
    assert found is not None
    assert all(name in found[0].description for name in BUILT_IN_REWARDS)
