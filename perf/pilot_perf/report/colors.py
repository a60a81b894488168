"""The colours of all figures: Okabe and Ito's, which colour-blind readers tell apart, and greys."""

UNTUNED = "#d55e00"
CHOSEN = "#0072b2"
OTHER = "#9ca3af"
LIMIT = "#111827"
REST = "#d1d5db"

# Where a request's time goes: label, field of Stages, colour.
STAGES = (
    ("queue", "queue_ms", "#e69f00"),
    ("input", "compute_input_ms", "#56b4e9"),
    ("compute", "compute_infer_ms", "#0072b2"),
    ("output", "compute_output_ms", "#cc79a7"),
)
