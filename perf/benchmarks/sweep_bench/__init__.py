"""What `sweep_peers.py` records of the tools that it compares."""
