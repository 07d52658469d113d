"""The output of subcommands: terminal pages, reports, plots and JSON."""
