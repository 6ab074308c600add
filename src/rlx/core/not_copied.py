"""What lives in one process, and is neither copied nor pickled."""

from __future__ import annotations

from typing import Any, ClassVar

from rlx.core.errors import Error


class NotCopied:
    """A class whose objects hold what another process has not: loaded code, memory of a device."""

    why_not_copied: ClassVar[str]
    """What it holds, and what to do instead: it follows the name of the class."""

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise Error(f"{type(self).__name__} {self.why_not_copied}")
