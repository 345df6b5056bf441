"""Published models in, found models out: folders of Hugging Face, files for llama.cpp, families of models."""
