"""Published models in, found models out: folders of Hugging Face, GGUF files, families of models."""
