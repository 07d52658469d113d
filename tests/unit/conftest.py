"""How the property tests of this stage run: the same examples each time, without a clock and without files."""

from hypothesis import settings

# A deadline measures the machine, not the code. Tests whose space is wide ask for more examples themselves.
settings.register_profile("unit", deadline=None, max_examples=20, derandomize=True, database=None)
settings.load_profile("unit")
