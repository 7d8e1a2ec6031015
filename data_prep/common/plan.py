"""What the parts in a folder were made with, so that a stopped run continues with the same settings or not at all."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from verl_dots.files import atomic_path


class Plan:
    """The file ``plan.json`` in a folder of parts. It appears with the first part: what failed earlier leaves nothing."""

    def __init__(self, folder: Path, settings: dict[str, Any]) -> None:
        """Look at the folder.

        Args:
            folder: ``X.parts`` beside the output; need not exist.
            settings: whatever changes the parts; plain JSON values.

        Raises:
            ValueError: it holds parts made with other settings.
        """
        self._path = folder / "plan.json"
        self._settings = settings
        if self._path.exists():
            self._check()

    def claim(self) -> None:
        """Call it before a part is written.

        Raises:
            ValueError: another run has begun to fill the folder with parts made with other settings.
        """
        if not self._path.exists():
            with atomic_path(self._path) as temporary:
                temporary.write_text(json.dumps(self._settings, indent=2) + "\n", encoding="utf-8")
        self._check()

    def _check(self) -> None:
        before, now = json.loads(self._path.read_text(encoding="utf-8")), json.loads(json.dumps(self._settings))
        different = [name for name in {**before, **now} if before.get(name) != now.get(name)]
        if different:
            name = different[0]
            raise ValueError(
                f"{str(self._path.parent)!r} holds parts made with {name} {before.get(name)!r}, not {now.get(name)!r}: "
                "use the same options to continue, or remove the folder to start again"
            )
