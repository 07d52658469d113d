"""The pods of a run and the objects beside them, as plain values."""
