"""Which trial comes next: pure functions of what was measured so far. Nothing here starts or loads anything."""
