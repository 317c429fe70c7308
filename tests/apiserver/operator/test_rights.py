"""The operator has exactly the rights that the chart gives it: it needs no other, and it uses every one."""

EVERYBODYS = {("authorization.k8s.io", "selfsubjectaccessreviews", "create")}
"""What Kubernetes lets every account do."""


def test_operator_needs_no_right_that_the_chart_does_not_give(stage):
    assert stage.refused == []
    assert stage.used - EVERYBODYS - stage.granted == set()


def test_chart_gives_no_right_that_the_operator_does_not_use(stage):
    assert stage.granted - stage.used == set()
