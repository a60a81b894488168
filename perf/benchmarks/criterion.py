"""How a benchmark says what is asked of it: a line for each thing, with what was found and whether it is met."""


def criterion(name: str, found: str, is_met: bool) -> str:
    return f"{'met' if is_met else 'NOT met':<8}{name}: {found}"
