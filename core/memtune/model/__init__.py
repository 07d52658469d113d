"""Model architectures and parameter counts, from a Hugging Face config or plain facts."""
