"""What `search.py` compares the search with."""
