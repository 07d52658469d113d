"""Plans: the knobs, what follows from a plan alone, and the settings that carry it out."""
