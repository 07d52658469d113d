"""Parsers of Hugging Face config families: one reader and its defaults per ``model_type``."""
