"""What ranks write into the store for each other: what they do, and the first failure."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass, field

from l2l_nas.errors import RankError


@dataclass(frozen=True)
class Beat:
    """What a rank says of itself, a few times a second.

    Args:
        count: of its beats.
        progress: grows with all that it does.
        doing: what that is, such as "in step 812, in load 17".
        begun: how many exchanges it began, by channel.
        knows: whether it knows what ended the epoch.
        has_left: whether it is done, and may end.
    """

    count: int = 0
    progress: int = 0
    doing: str = "at the start"
    begun: Mapping[str, int] = field(default_factory=dict)
    knows: bool = False
    has_left: bool = False

    def written(self) -> str:
        """As one JSON text."""
        return json.dumps(dataclasses.asdict(self))

    @classmethod
    def read(cls, text: bytes) -> Beat:
        """What `written` wrote."""
        return cls(**json.loads(text))


@dataclass(frozen=True)
class Failure:
    """Why an epoch ended; all ranks know the same one.

    Args:
        text: one line that names the rank.
        by: the rank that found it, and prints it.
        rank: which one failed; None where it is no single rank.
        goes_on: see `RankError`.
    """

    text: str
    by: int
    rank: int | None = None
    goes_on: bool = False

    def written(self) -> str:
        """As one JSON text."""
        return json.dumps(dataclasses.asdict(self))

    @classmethod
    def read(cls, text: bytes) -> Failure:
        """What `written` wrote."""
        return cls(**json.loads(text))

    def as_error(self) -> RankError:
        """What is raised where a rank learns of it."""
        return RankError(self.text, rank=self.rank, goes_on=self.goes_on)
