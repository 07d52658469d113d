"""How each family of Hugging Face configs is read: one reader and its defaults per ``model_type``."""
