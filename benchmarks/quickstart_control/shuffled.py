"""A reward that says nothing: the control of `quickstart_learning.py`.

Each response gets the score of another, drawn from the last ones that were scored. Scores keep their
distribution and lose their tie to the response, which is what shuffling advantages among the samples does.
"""

import random
from collections import deque
from collections.abc import Mapping
from typing import Any

_recent: deque[float] = deque(maxlen=128)
_random = random.Random(0)


def score(*, prompt: str, response: str, fields: Mapping[str, Any]) -> float:
    """The exact match of some other response."""
    drawn = _random.choice(_recent) if _recent else 0.0
    _recent.append(float(response == fields["answer"]))
    return drawn
