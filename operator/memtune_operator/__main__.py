"""Entry point of `python -m memtune_operator`: the operator, configured by environment variables."""

from __future__ import annotations

import asyncio
import logging
import os
import sys

from memtune_operator import handlers
from memtune_operator.settings import SettingsError, read_settings


def main() -> int:
    """Run until stopped; return 2 if a setting is invalid."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    # kopf logs a line for every event of every job.
    logging.getLogger("kopf").setLevel(logging.WARNING)
    try:
        settings = read_settings(os.environ)
    except SettingsError as error:
        print(f"memtune-operator: {error}", file=sys.stderr)
        return 2
    asyncio.run(handlers.run(settings))
    return 0


if __name__ == "__main__":
    sys.exit(main())
