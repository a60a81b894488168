"""`python -m pilot_cli`, for an environment whose bin folder is not on PATH."""

from pilot_cli.main import main

main()
