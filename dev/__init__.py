"""Tools for developers of MemTune; not part of any distribution."""
