"""Libraries that would fill a log file: an error is shown as one line at the end, the retries before it are not."""

from __future__ import annotations

import logging
import sys


def quieten() -> None:
    """No retries of the hub, no warnings while a model is loaded; no progress bars of the libraries outside a terminal."""
    import huggingface_hub.utils  # sets its own level when it is imported, so the import comes first
    from transformers.utils import logging as transformers_logging

    for name in ("huggingface_hub", "transformers", "sentence_transformers", "httpx"):
        logging.getLogger(name).setLevel(logging.ERROR)
    if not sys.stderr.isatty():
        transformers_logging.disable_progress_bar()
        huggingface_hub.utils.disable_progress_bars()
