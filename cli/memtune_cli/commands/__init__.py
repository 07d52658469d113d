"""The subcommands, one module each. `memtune_cli.arguments` defines their options."""
