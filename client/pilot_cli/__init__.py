"""The `tritonpilot` command: one file per command, imported only when that command runs."""
