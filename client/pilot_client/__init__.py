"""Tools on tritonclient: requests, streams, repository control, statistics and model configurations."""
