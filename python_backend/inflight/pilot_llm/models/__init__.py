"""The native decoder for the Llama family, and the reading of its Hugging Face configuration."""
