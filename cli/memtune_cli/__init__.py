"""The `memtune` command. It imports only the core at start; subcommands import the rest when needed."""
