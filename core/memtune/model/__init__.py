"""Architecture facts: what a model is made of, read from a Hugging Face config or given plainly."""
