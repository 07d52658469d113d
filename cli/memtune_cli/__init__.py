"""The `memtune` command. Imports the core at start and everything else only where a subcommand needs it."""
