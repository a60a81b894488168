"""The native decoder for the Llama family with the reading of its configuration, and transformers for other models."""
