"""Settings of the unit tests: property tests use the same examples each time, without deadlines and files."""

import gc

from hypothesis import settings
from isolation import _kept_apart, _no_breach  # noqa: F401  # fixtures, found by their names

# A deadline would measure the machine. Tests with a wide space ask for more examples themselves.
settings.register_profile("unit", deadline=None, max_examples=20, derandomize=True, database=None)
settings.load_profile("unit")
# Most objects live to the end of these few seconds: scanning them every 700 allocations took a fifth of the time.
gc.set_threshold(100_000)
