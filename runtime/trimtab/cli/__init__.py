"""The `trimtab` command: one module per subcommand, imported when it is called."""
