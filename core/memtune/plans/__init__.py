"""Plans: the knobs, what follows from a plan alone, and the library settings that carry it out."""
